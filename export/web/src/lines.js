// The lines of a text, their vectors as far as there are any, and the nearest of them.

const WINDOW = 256; // lines that are sorted by length together: batches of equal length, in nearly the file's order
const BATCH_TOKENS = 512;

export class Lines {
  /** @param {string[]} texts lines that are not blank */
  constructor(texts, encoder) {
    this.texts = texts;
    this.encoder = encoder;
    this.vectors = []; // one Float32Array a line, in the file's order; holes where there is none yet
    this.done = 0;
    this.milliseconds = 0;
    this.batches = [];
    this.next = 0;
  }

  get finished() {
    return this.done === this.texts.length;
  }

  get bytes() {
    return this.done * this.encoder.dim * 4;
  }

  /** Embed one more batch. */
  async step() {
    const started = performance.now();
    if (!this.batches.length) this.#plan();
    const batch = this.batches.shift();
    const output = await this.encoder.run(batch.map(({ ids }) => ids));
    const { dim } = this.encoder;
    batch.forEach(({ line }, i) => { this.vectors[line] = output.slice(i * dim, (i + 1) * dim); });
    this.done += batch.length;
    this.milliseconds += performance.now() - started;
  }

  #plan() {
    const end = Math.min(this.next + WINDOW, this.texts.length);
    const rows = [];
    for (; this.next < end; this.next++) rows.push({ line: this.next, ids: this.encoder.ids(this.texts[this.next]) });
    rows.sort((a, b) => a.ids.length - b.ids.length);
    let batch = [];
    for (const row of rows) {
      if (batch.length && (batch.length + 1) * row.ids.length > BATCH_TOKENS) {
        this.batches.push(batch);
        batch = [];
      }
      batch.push(row);
    }
    this.batches.push(batch);
  }

  /** The `count` lines nearest to a unit vector, best first: {line, score}. */
  nearest(query, count) {
    const best = [];
    this.vectors.forEach((vector, line) => {
      let score = 0;
      for (let i = 0; i < vector.length; i++) score += vector[i] * query[i];
      if (best.length === count && score <= best.at(-1).score) return;
      let at = best.length;
      while (at > 0 && best[at - 1].score < score) at--;
      best.splice(at, 0, { line, score });
      if (best.length > count) best.pop();
    });
    return best;
  }
}
