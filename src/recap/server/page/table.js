// The points of a plot as a table that sorts by its columns.

import { make } from "./dom.js";
import { seconds } from "./format.js";

const COLUMNS = [
  { name: "Schedule", key: (point) => point.full + point.local, cell: (point) => point.schedule },
  { name: "Decoding", key: (point) => Number(point.reused), cell: (point) => (point.reused ? "reused" : "plain") },
  { name: "Time an image", key: (point) => point.seconds, cell: (point) => seconds(point.seconds), number: true },
  { name: "FID", key: (point) => point.fid, cell: (point) => point.fid.toFixed(2), number: true },
  { name: "Front", key: (point) => Number(!point.front), cell: (point) => (point.front ? "yes" : "") },
];

/** Fills a table; `chosen` is told the point of a row whose button is pressed. */
export function table(element, points, chosen, sorted = 3, down = false) {
  const { key } = COLUMNS[sorted];
  const rows = [...points].sort((a, b) => (key(a) - key(b)) * (down ? -1 : 1));
  const heads = COLUMNS.map(({ name, number }, index) =>
    make(
      "th",
      { scope: "col", class: number ? "number" : null, "aria-sort": index === sorted ? (down ? "descending" : "ascending") : null },
      make("button", { type: "button", onclick: () => sort(index) }, name),
    ),
  );
  const row = (point) =>
    make(
      "tr",
      {},
      ...COLUMNS.map(({ cell, number }, index) => make(index ? "td" : "th", { scope: index ? null : "row", class: number ? "number" : null }, cell(point))),
      make("td", {}, ...(point.loadable ? [make("button", { type: "button", class: "link", "aria-label": `Try ${point.schedule}`, onclick: () => chosen(point) }, "Try")] : [])),
    );
  function sort(index) {
    table(element, points, chosen, index, index === sorted ? !down : false);
    element.querySelectorAll("thead button")[index].focus();
  }
  element.replaceChildren(
    make("thead", {}, make("tr", {}, ...heads, make("td", {}))),
    make("tbody", {}, ...rows.map(row)),
  );
}
