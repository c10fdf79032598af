// What a terminal would show of a text: lines of it with their colours. The text comes in pieces that may end anywhere, also within an escape
// sequence, and each piece is read once.

/**
 * How characters look.
 * @typedef {{ fg?: string, bg?: string, bold?: boolean, dim?: boolean, italic?: boolean, underline?: boolean, strike?: boolean, inverse?: boolean }} Style
 *
 * A line: its text, and where which style begins, as pairs of a position and the number of a style. Empty where all is plain.
 * @typedef {{ text: string, runs: number[] }} Line
 */

/** The first sixteen colours are names of classes, so that each theme has its own. */
const NAMED = 16;

/** An escape sequence: of colours and the cursor, of titles and links, or of two characters. */
const ESCAPE = /\x1b(?:\[([0-9:;<=>?]*)[ -/]*([@-~])|\]([^\x07\x1b]*)(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-Z^-~])/y;
/** The beginning of one, at the end of a piece. */
const BEGUN = /\x1b(?:\[[0-9:;<=>?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)$/y;
/** More of a text than that is no beginning of a sequence. */
const ESCAPE_MAX = 8192;
/** Characters that do something, or begin to. */
const SPECIAL = /[\x00-\x1f\x7f]/g;
/** Characters of a line. */
const LINE_MAX = 65536;
/** Lines that are kept, and how many of the oldest go at one time: to move the others costs time. */
export const LINES_MAX = 500_000;
const DROPPED_AT_ONCE = 50_000;

export class Screen {
  constructor() {
    /** @type {Line[]} */
    this.lines = [{ text: "", runs: [] }];
    /** @type {Style[]} */
    this.styles = [{}];
    /** @type {Map<string, number>} */
    this.numbers = new Map([["{}", 0]]);
    this.row = 0;
    this.column = 0;
    this.style = 0;
    this.rest = "";
    /** The first line that has changed since somebody asked. */
    this.changedFrom = 0;
    /** Lines that are no longer kept. */
    this.dropped = 0;
  }

  /** @param {string} piece */
  write(piece) {
    const text = this.rest + piece;
    this.rest = "";
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      const end = found ? found.index : text.length;
      if (end > at) this.print(text.slice(at, end));
      if (!found) return;
      at = end + 1;
      switch (text.charCodeAt(end)) {
        case 0x0a:
          this.row += 1;
          this.column = 0;
          if (this.row < this.lines.length) break;
          this.lines.push({ text: "", runs: [] });
          if (this.lines.length > LINES_MAX) this.drop(DROPPED_AT_ONCE);
          break;
        case 0x0d:
          this.column = 0;
          break;
        case 0x08:
          this.column = Math.max(0, this.column - 1);
          break;
        case 0x09:
          this.print(" ".repeat(8 - (this.column % 8)));
          break;
        case 0x1b: {
          ESCAPE.lastIndex = end;
          const sequence = ESCAPE.exec(text);
          if (sequence) {
            at = ESCAPE.lastIndex;
            if (sequence[2]) this.control(sequence[1], sequence[2]);
            break;
          }
          BEGUN.lastIndex = end;
          if (text.length - end < ESCAPE_MAX && BEGUN.test(text)) {
            this.rest = text.slice(end);
            return;
          }
          break;
        }
      }
    }
  }

  /** Forgets the oldest lines; the first one says so. @param {number} count */
  drop(count) {
    this.lines.splice(0, count);
    this.row -= count;
    this.dropped += count;
    this.lines[0] = { text: `(the first ${(this.dropped + 1).toLocaleString("en")} lines are no longer shown)`, runs: [] };
    this.changedFrom = 0;
  }

  /** @param {string} text */
  print(text) {
    const line = this.lines[this.row];
    if (this.row < this.changedFrom) this.changedFrom = this.row;
    const { column, style } = this;
    if (column + text.length > LINE_MAX) text = text.slice(0, LINE_MAX - column);
    if (text === "") return;
    this.column += text.length;
    if (column >= line.text.length) {
      if (column > line.text.length) line.text += " ".repeat(column - line.text.length);
      const last = line.runs.length ? line.runs[line.runs.length - 1] : 0;
      if (style !== last) line.runs.push(column, style);
      line.text += text;
      return;
    }
    this.overwrite(line, column, text, style);
  }

  /**
   * Puts a text where there is one.
   * @param {Line} line
   * @param {number} column
   * @param {string} text
   * @param {number} style
   */
  overwrite(line, column, text, style) {
    const end = column + text.length;
    /** @type {number[]} */
    const runs = [];
    let last = 0;
    const push = (/** @type {number} */ at, /** @type {number} */ number) => {
      if (number === last) return;
      if (runs.length && runs[runs.length - 2] === at) runs.splice(-2);
      runs.push(at, number);
      last = number;
    };
    const after = end < line.text.length ? styleAt(line, end) : 0;
    for (let i = 0; i < line.runs.length && line.runs[i] < column; i += 2) push(line.runs[i], line.runs[i + 1]);
    push(column, style);
    if (end < line.text.length) {
      push(end, after);
      for (let i = 0; i < line.runs.length; i += 2) if (line.runs[i] > end) push(line.runs[i], line.runs[i + 1]);
    }
    line.text = line.text.slice(0, column) + text + line.text.slice(end);
    line.runs = runs;
  }

  /**
   * @param {string} parameters
   * @param {string} command
   */
  control(parameters, command) {
    const first = Number.parseInt(parameters, 10);
    const count = Math.min(Math.max(1, first || 1), 1000);
    switch (command) {
      case "m":
        if (!/[<=>?]/.test(parameters)) this.colour(parameters);
        break;
      case "K":
        this.erase(first || 0);
        break;
      case "A":
      case "F":
        this.row = Math.max(0, this.row - count);
        if (command === "F") this.column = 0;
        break;
      case "B":
      case "E":
        // As at the lower edge of a terminal: a short sequence makes no lines.
        this.row = Math.min(this.row + count, this.lines.length - 1);
        if (command === "E") this.column = 0;
        break;
      case "C":
        this.column = Math.min(this.column + count, LINE_MAX);
        break;
      case "D":
        this.column = Math.max(0, this.column - count);
        break;
      case "G":
        this.column = count - 1;
        break;
      case "J":
        // What follows the cursor, such as the rest of a progress display of several lines.
        if (!first) {
          this.erase(0);
          this.lines.length = this.row + 1;
        }
        break;
    }
  }

  /** @param {number} what */
  erase(what) {
    const line = this.lines[this.row];
    if (this.row < this.changedFrom) this.changedFrom = this.row;
    if (what === 2) {
      line.text = "";
      line.runs = [];
    } else if (what === 1) {
      this.overwriteBlank(line, Math.min(this.column + 1, line.text.length));
    } else {
      line.text = line.text.slice(0, this.column);
      while (line.runs.length && line.runs[line.runs.length - 2] >= this.column) line.runs.splice(-2);
    }
  }

  /**
   * @param {Line} line
   * @param {number} count
   */
  overwriteBlank(line, count) {
    if (count > 0) this.overwrite(line, 0, " ".repeat(count), 0);
  }

  /** @param {string} parameters */
  colour(parameters) {
    /** @type {Style} */
    let style = { ...this.styles[this.style] };
    const codes = parameters.split(/[;:]/).map((code) => Number.parseInt(code, 10) || 0);
    for (let i = 0; i < codes.length; i += 1) {
      const code = codes[i];
      if (code === 0) style = {};
      else if (code === 1) style.bold = true;
      else if (code === 2) style.dim = true;
      else if (code === 3) style.italic = true;
      else if (code === 4) style.underline = true;
      else if (code === 7) style.inverse = true;
      else if (code === 9) style.strike = true;
      else if (code === 22) delete style.bold, delete style.dim;
      else if (code === 23) delete style.italic;
      else if (code === 24) delete style.underline;
      else if (code === 27) delete style.inverse;
      else if (code === 29) delete style.strike;
      else if (code >= 30 && code <= 37) style.fg = `c${code - 30}`;
      else if (code >= 40 && code <= 47) style.bg = `c${code - 40}`;
      else if (code >= 90 && code <= 97) style.fg = `c${code - 82}`;
      else if (code >= 100 && code <= 107) style.bg = `c${code - 92}`;
      else if (code === 39) delete style.fg;
      else if (code === 49) delete style.bg;
      else if (code === 38 || code === 48) {
        const { colour, used } = extended(codes.slice(i + 1));
        i += used;
        if (colour) style[code === 38 ? "fg" : "bg"] = colour;
      }
    }
    const key = JSON.stringify(style);
    let number = this.numbers.get(key);
    if (number === undefined) {
      // A text with all colours there are would fill the memory with them: then the plain one will do.
      number = this.styles.length < 4096 ? this.styles.push(style) - 1 : 0;
      if (number) this.numbers.set(key, number);
    }
    this.style = number;
  }
}

/**
 * The style of a character.
 * @param {Line} line
 * @param {number} at
 */
function styleAt(line, at) {
  let style = 0;
  for (let i = 0; i < line.runs.length && line.runs[i] <= at; i += 2) style = line.runs[i + 1];
  return style;
}

/**
 * One of 256 colours, or one of all.
 * @param {number[]} codes
 * @returns {{ colour?: string, used: number }}
 */
function extended(codes) {
  if (codes[0] === 2) {
    const [r = 0, g = 0, b = 0] = codes.slice(1, 4).map((part) => Math.min(255, part));
    return { colour: `rgb(${r} ${g} ${b})`, used: 4 };
  }
  if (codes[0] !== 5) return { used: 0 };
  const index = Math.min(255, codes[1] ?? 0);
  if (index < NAMED) return { colour: `c${index}`, used: 2 };
  if (index >= 232) {
    const grey = 8 + (index - 232) * 10;
    return { colour: `rgb(${grey} ${grey} ${grey})`, used: 2 };
  }
  const level = (/** @type {number} */ part) => (part ? 55 + part * 40 : 0);
  const cube = index - 16;
  return { colour: `rgb(${level(Math.floor(cube / 36))} ${level(Math.floor(cube / 6) % 6)} ${level(cube % 6)})`, used: 2 };
}
