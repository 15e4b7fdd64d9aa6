// A picture from a file, the clipboard or another view: its middle square, small enough to be sent.

import { Problem } from "./api.js";

const MOST = 1024; // pixels along a side; models draw fewer

/** The middle square of a picture file on a canvas of its own. */
export async function square(file, limits) {
  if (!file.size) throw new Problem(`${title(file)} is empty; choose a PNG, JPEG or WebP file.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Problem(`${title(file)} is no picture that can be read; choose a PNG, JPEG or WebP file.`);
  }
  const side = Math.min(bitmap.width, bitmap.height);
  const most = Math.min(MOST, Math.floor(Math.sqrt(limits.max_pixels)), Math.floor(Math.sqrt(limits.max_body / 8)));
  const kept = Math.min(side, most);
  const canvas = new OffscreenCanvas(kept, kept);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // under what is transparent
  context.fillRect(0, 0, kept, kept);
  const [left, top] = [Math.floor((bitmap.width - side) / 2), Math.floor((bitmap.height - side) / 2)];
  context.drawImage(bitmap, left, top, side, side, 0, 0, kept, kept);
  bitmap.close();
  return canvas;
}

const title = (file) => (file.name ? `“${file.name}”` : "What was pasted");

/** The first file in what was dropped or pasted. */
export const carried = (transfer) => [...(transfer?.files ?? [])][0] ?? null;
