/* A photo file as pixels of the model's input size, as `--fit crop` of the command line: the largest
   centred box is averaged over whole blocks, then resized with antialiasing. The browser decodes the
   file. Python decodes a large JPEG at a half, a quarter or an eighth of its size instead. */

const MAX_SHOWN = 640; // longest side of the shown copy in pixels
const LOSSLESS = 256; // longest side of a copy that is stored as PNG
const MAX_DECODED = 4096; // longest side of the box that is read; the canvas shrinks a larger one
const MAX_PIXELS = 1e8;
const MAX_RATIO = 20;

/* Pixels of one kind: rows of `width` pixels with `channels` values. */
class Pixels {
  constructor(height, width, channels, data) {
    Object.assign(this, { height, width, channels, data });
  }
}

/* Python's round: half to even. */
function roundHalfEven(x) {
  const below = Math.floor(x);
  if (x - below !== 0.5) return Math.round(x);
  return below % 2 ? below + 1 : below;
}

/* The largest centred box with the aspect of `size`: top, left, height, width. */
function centralBox(height, width, size) {
  const scale = Math.min(height / size[0], width / size[1]);
  const tall = Math.min(height, Math.max(1, roundHalfEven(size[0] * scale)));
  const wide = Math.min(width, Math.max(1, roundHalfEven(size[1] * scale)));
  return [Math.floor((height - tall) / 2), Math.floor((width - wide) / 2), tall, wide];
}

/* Return what the page needs of a file: the model's pixels, a copy to show, and the box in it.

   Throws an Error with a sentence for the reader if the file is not a picture that can be read. */
async function readPhoto(file, size, channels) {
  const name = file.name || "pasted picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  } catch {
    throw new Error(`${name}: this browser cannot read it as a picture; try PNG or JPEG.`);
  }
  try {
    return toPhoto(name, bitmap, size, channels);
  } finally {
    bitmap.close();
  }
}

function toPhoto(name, bitmap, size, channels) {
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) throw new Error(`${name}: over ${MAX_PIXELS / 1e6} megapixels; save a smaller copy.`);
  if (Math.max(width, height) > MAX_RATIO * Math.min(width, height)) {
    throw new Error(`${name}: ${width}x${height} has an aspect ratio over ${MAX_RATIO}:1; save a smaller copy.`);
  }
  const pixels = fit(boxOf(bitmap, size), size, channels);
  const [top, left, tall, wide] = centralBox(height, width, size);
  const box = [left / width, top / height, wide / width, tall / height];
  return { name, pixels, box, size: [width, height], picture: copyToShow(bitmap) };
}

/* Draw a part of a picture on white, and return the canvas. */
function drawPart(bitmap, [top, left, tall, wide], height, width) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, left, top, wide, tall, 0, 0, width, height);
  return canvas;
}

function copyToShow(bitmap) {
  const { width, height } = bitmap;
  const share = Math.min(1, MAX_SHOWN / Math.max(width, height));
  const sides = [height, width].map((side) => Math.max(1, Math.round(side * share)));
  const canvas = drawPart(bitmap, [0, 0, height, width], ...sides);
  return Math.max(...sides) <= LOSSLESS ? canvas.toDataURL() : canvas.toDataURL("image/jpeg", 0.88);
}

/* Return the pixels of the box that the model sees: red, green, blue. Its sides are whole multiples
   of the blocks that `fit` averages. */
function boxOf(bitmap, size) {
  const [, , tall, wide] = centralBox(bitmap.height, bitmap.width, size);
  const block = blockSide(tall, wide, size);
  const [height, width] = [tall - (tall % block), wide - (wide % block)];
  const top = Math.floor((bitmap.height - height) / 2);
  const left = Math.floor((bitmap.width - width) / 2);
  const share = Math.min(1, MAX_DECODED / Math.max(height, width));
  const sides = [height, width].map((side) => Math.max(1, Math.round(side * share)));
  const canvas = drawPart(bitmap, [top, left, height, width], ...sides);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Uint8Array(canvas.width * canvas.height * 3);
  for (let from = 0, to = 0; to < colours.length; from += 4, to += 3) {
    colours[to] = data[from];
    colours[to + 1] = data[from + 1];
    colours[to + 2] = data[from + 2];
  }
  return new Pixels(canvas.height, canvas.width, 3, colours);
}

/* The side of the blocks that are averaged: both sides stay at least twice the model's. */
function blockSide(height, width, size) {
  return Math.max(1, Math.min(Math.floor(height / (2 * size[0])), Math.floor(width / (2 * size[1]))));
}

/* Return the pixels of the box as the model's input: bytes in rows of H W C. */
function fit(pixels, size, channels) {
  const kind = channels === 1 ? toGreyPixels(pixels) : pixels;
  const small = average(kind, blockSide(kind.height, kind.width, size));
  return resize(cut(small, centralBox(small.height, small.width, size)), size).data;
}

/* The luma of ITU-R BT.601 in 16 bits, as Pillow computes it. */
function toGreyPixels({ height, width, data }) {
  const grey = new Uint8Array(height * width);
  for (let i = 0; i < grey.length; i += 1) {
    const [red, green, blue] = [data[3 * i], data[3 * i + 1], data[3 * i + 2]];
    grey[i] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
  }
  return new Pixels(height, width, 1, grey);
}

/* Replace each block of pixels by its mean, rounded as Pillow does: the division is a product with
   an integer of 24 bits. */
function average(pixels, side) {
  if (side === 1) return pixels;
  const { channels, data } = pixels;
  const [height, width] = [pixels.height, pixels.width].map((length) => Math.floor(length / side));
  const made = new Uint8Array(height * width * channels);
  const count = side * side;
  const factor = Math.floor(2 ** 24 / count);
  for (let i = 0; i < made.length; i += 1) {
    const place = Math.floor(i / channels);
    const [top, left] = [Math.floor(place / width) * side, (place % width) * side];
    let sum = Math.floor(count / 2);
    for (let row = top; row < top + side; row += 1) {
      const from = (row * pixels.width + left) * channels + (i % channels);
      for (let column = 0; column < side; column += 1) sum += data[from + column * channels];
    }
    made[i] = Math.floor((sum * factor) / 2 ** 24);
  }
  return new Pixels(height, width, channels, made);
}

function cut(pixels, [top, left, height, width]) {
  const { channels, data } = pixels;
  if (height === pixels.height && width === pixels.width) return pixels;
  const made = new Uint8Array(height * width * channels);
  for (let row = 0; row < height; row += 1) {
    const from = ((top + row) * pixels.width + left) * channels;
    made.set(data.subarray(from, from + width * channels), row * width * channels);
  }
  return new Pixels(height, width, channels, made);
}

/* Resize bilinearly with antialiasing: first the columns, then the rows. */
function resize(pixels, [height, width]) {
  if (pixels.height === height && pixels.width === width) return pixels;
  const { channels } = pixels;
  const across = resizeSide(pixels.data, pixels.height, pixels.width, channels, width);
  const made = resizeSide(across, 1, pixels.height, width * channels, height);
  const bytes = Uint8Array.from(made, (x) => Math.min(255, Math.max(0, roundHalfEven(x))));
  return new Pixels(height, width, channels, bytes);
}

/* Resize the middle axis of (count, length, size) to `target`: a triangle of the width of one pixel
   of the longer side weighs the values around the centre of each result. */
function resizeSide(data, count, length, size, target) {
  const scale = length / target;
  const reach = Math.max(1, scale);
  const made = new Float32Array(count * target * size);
  for (let i = 0; i < target; i += 1) {
    const centre = scale * (i + 0.5);
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const last = Math.min(length, Math.trunc(centre + reach + 0.5));
    const weights = [];
    for (let j = first; j < last; j += 1) {
      weights.push(Math.max(0, 1 - Math.abs(j + 0.5 - centre) / reach));
    }
    const sum = weights.reduce((total, weight) => total + weight, 0);
    for (let row = 0; row < count; row += 1) {
      for (let k = 0; k < size; k += 1) {
        let value = 0;
        weights.forEach((weight, j) => {
          value += weight * data[(row * length + first + j) * size + k];
        });
        made[(row * target + i) * size + k] = value / sum;
      }
    }
  }
  return made;
}
