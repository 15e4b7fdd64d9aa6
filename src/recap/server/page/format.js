// Numbers as people read them.

export const times = (value) => `${value.toFixed(value < 10 ? 2 : 1)}×`;

export function seconds(value) {
  if (value < 0.01) return `${(value * 1000).toPrecision(2)} ms`;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(1)} s`;
}

/** How many times as fast reuse was, null where its pairs with plain decoding do not agree, and what they say. */
export function gained({ median, pairs, processor }) {
  const own = `${times(processor)} in processor time`;
  const range = `${times(Math.min(...pairs))} to ${times(Math.max(...pairs))}`;
  if (median === null) {
    const about = `The ${pairs.length} pairs go from ${range}: the machine is busy, or the two are level; ${own}.`;
    return { figure: null, words: "no clear gain", about };
  }
  const about = pairs.length === 1 ? `One pair; ${own}.` : `Median of ${pairs.length} pairs, ${range}; ${own}.`;
  return { figure: times(median), words: "as fast", about };
}

export function bytes(value) {
  if (!value) return "none";
  return value < 1e6 ? `${Math.max(1, Math.round(value / 1e3))} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** "64" or "32+32" in words. */
export function evaluations(setting) {
  const [full, local] = String(setting).split("+").map(Number);
  return local ? `${full} full + ${plural(local, "local evaluation")}` : plural(full, "full evaluation");
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
