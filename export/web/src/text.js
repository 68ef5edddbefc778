// A dropped file to lines.

export const MOST_LINES = 100_000;
const MOST_BYTES = 200 * 2 ** 20;

/** Longer lines are cut before tokenizing: no limit of tokens reaches that far, and a book in one line would take minutes. */
export const MOST_CHARACTERS = 50_000;

/**
 * The lines of a file that are not blank, each with its number from 1.
 * @param {File | Blob} file
 */
export async function readLines(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${megabytes(file.size)}; up to ${megabytes(MOST_BYTES)} fit in a page`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    throw new Error(error instanceof TypeError ? `${file.name} is not UTF-8 text; save it as UTF-8 and drop it again`
      : `${file.name} could not be read (${error.message})`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file: it holds NUL characters`);
  const lines = [];
  text.split(/\r\n|\n|\r/).forEach((line, i) => { if (line.trim()) lines.push({ number: i + 1, text: line.trim() }); });
  return lines;
}

export const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(bytes < 10 * 2 ** 20 ? 1 : 0)} MB`;
