// Elements made, found and copied from the page's templates.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Finder of the elements that a template calls by name. */
export const parts = (root) => (name) => root.querySelector(`[data-part="${name}"]`);

/** A copy of a template; ids become unique by `prefix`, and labels follow. */
export function stamp(template, prefix) {
  const root = document.getElementById(template).content.firstElementChild.cloneNode(true);
  const follow = [["id", "id"], ["for", "for"], ["describedby", "aria-describedby"]];
  for (const [name, attribute] of follow) {
    for (const element of root.querySelectorAll(`[data-${name}]`)) {
      element.setAttribute(attribute, `${prefix}-${element.getAttribute(`data-${name}`)}`);
    }
  }
  return root;
}

/** Shows a message, or hides it where there is nothing to say. */
export function say(element, text) {
  element.textContent = text ?? "";
  element.hidden = !text;
}

/** Makes a group of buttons with `aria-pressed` a choice of one; `chosen` is told the button. */
export function choice(group, chosen) {
  group.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    chosen(button);
  });
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
