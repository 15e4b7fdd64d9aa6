// A mask to paint: white is drawn anew. It remembers what it was, to undo.

const SIDE = 512;
const UNDO = 30;

export class Mask {
  constructor() {
    this.canvas = new OffscreenCanvas(SIDE, SIDE);
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.context.fillStyle = this.context.strokeStyle = "white";
    this.context.lineCap = this.context.lineJoin = "round";
    this.before = [];
  }

  /** Keeps what is there for `undo`. */
  keep() {
    this.before.push(this.pixels());
    if (this.before.length > UNDO) this.before.shift();
  }

  undo() {
    const pixels = this.before.pop();
    if (pixels) this.context.putImageData(pixels, 0, 0);
    return Boolean(pixels);
  }

  reset() {
    this.before = [];
    this.context.clearRect(0, 0, SIDE, SIDE);
  }

  pixels() {
    return this.context.getImageData(0, 0, SIDE, SIDE);
  }

  /** A stroke between two points, all in shares of a side. */
  stroke(from, to, size, erase) {
    this.context.globalCompositeOperation = erase ? "destination-out" : "source-over";
    this.context.lineWidth = size * SIDE;
    this.context.beginPath();
    this.context.moveTo(from[0] * SIDE, from[1] * SIDE);
    this.context.lineTo(to[0] * SIDE, to[1] * SIDE);
    this.context.stroke();
    this.context.globalCompositeOperation = "source-over";
  }

  clear() {
    this.keep();
    this.context.clearRect(0, 0, SIDE, SIDE);
  }

  invert() {
    this.keep();
    this.context.globalCompositeOperation = "xor";
    this.context.fillRect(0, 0, SIDE, SIDE);
    this.context.globalCompositeOperation = "source-over";
  }

  /** A rectangle, in shares of a side. */
  box(left, top, right, bottom) {
    this.keep();
    this.context.fillRect(left * SIDE, top * SIDE, (right - left) * SIDE, (bottom - top) * SIDE);
  }

  /** White pixels as true, `side` by `side`; what a smaller pixel touches stays white. */
  at(side) {
    const { data } = this.pixels();
    const white = new Uint8Array(SIDE * SIDE);
    for (let i = 0; i < white.length; i++) white[i] = data[4 * i + 3] >= 128 ? 1 : 0;
    return shrink(white, SIDE, side);
  }

  /** The mask as a PNG of the size of a picture. */
  file(side) {
    const white = this.at(side);
    const image = new ImageData(side, side);
    white.forEach((value, at) => image.data.set([255 * value, 255 * value, 255 * value, 255], 4 * at));
    const canvas = new OffscreenCanvas(side, side);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas.convertToBlob({ type: "image/png" });
  }
}

/** A square of flags at another size; a flag is set if anything that it covers was, as the server does it. */
export function shrink(flags, from, to) {
  const result = new Uint8Array(to * to);
  const first = (at) => Math.floor((at * from) / to);
  const after = (at) => Math.ceil(((at + 1) * from) / to);
  for (let row = 0; row < to; row++) {
    for (let y = first(row); y < after(row); y++) {
      for (let column = 0; column < to; column++) {
        const line = y * from;
        for (let x = first(column); x < after(column); x++) {
          if (flags[line + x]) {
            result[row * to + column] = 1;
            break;
          }
        }
      }
    }
  }
  return result;
}
