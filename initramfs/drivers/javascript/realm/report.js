/*
 * How an uncaught error is shown: on standard error as the plain runtime would, and as an `error` record.
 *
 *     <cell 3>:2                                   where it was thrown, if that is in a text or file of the user's
 *       return config.missing.name;                the line as the user wrote it, whatever we ran
 *                             ^
 *     TypeError: undefined is not an object        name and message; other properties after the stack, then the causes
 *         at read (<cell 3>:2:25)                  the user's frames only, positions in the text as the user wrote it
 *         at <cell 3>:4:1
 */

"use strict";

const MAX_DEPTH = 5;
const MAX_SOURCES = 500;
const MAX_SOURCE_BYTES = 4 << 20;
const MAX_LINE = 400;
const MAX_TRACEBACK = 48 << 10;
const FRAME = /^(\s*at (?:.*? \()?)(.*?):(\d+)(?::(\d+))?(\)?)$/;

exports.makeReporter = function (runtime) {
  /** filename → { lines, columns, exact }: the texts that were run, newest last. */
  const sources = new Map();
  let sourceBytes = 0;

  function remember(filename, text) {
    forget(filename);
    sources.set(filename, { text, lines: null, columns: null, exact: true });
    sourceBytes += text.length;
    while (sources.size > 1 && (sources.size > MAX_SOURCES || sourceBytes > MAX_SOURCE_BYTES)) forget(sources.keys().next().value);
  }

  /** How positions in what is run relate to the text. */
  function setPositions(filename, { columns, exact }) {
    Object.assign(sources.get(filename), { columns, exact });
  }

  function forget(filename) {
    sourceBytes -= sources.get(filename)?.text.length ?? 0;
    sources.delete(filename);
  }

  const splitLines = (text) => text.split(/\r\n|[\n\r\u2028\u2029]/);

  function lineOf(filename, number) {
    const known = sources.get(filename);
    if (known) {
      if (!known.exact) return undefined;
      known.lines ??= splitLines(known.text);
      return known.lines[number - 1];
    }
    try {
      if (!filename.startsWith("/") || runtime.statSync(filename).size > MAX_SOURCE_BYTES) return undefined;
      return splitLines(runtime.readFileSync(filename, "utf8"))[number - 1];
    } catch {
      return undefined;
    }
  }

  function isBeyond(filename, number) {
    const known = sources.get(filename);
    if (!known?.exact) return false;
    known.lines ??= splitLines(known.text);
    return number > known.lines.length;
  }

  /** The column in the user's text of a column in what was run; both count from 1. */
  function columnOf(filename, line, column) {
    const shifts = sources.get(filename)?.columns?.get(line - 1);
    if (!shifts) return column;
    let moved = column;
    for (const [inCode, inText] of shifts) {
      if (column - 1 < inCode) break;
      moved = inText + (column - 1 - inCode) + 1;
    }
    return Math.max(moved, 1);
  }

  /** The user's frames of a stack, positions put right. */
  function frames(stack) {
    const found = [];
    for (const text of stack.split("\n")) {
      if (!/^\s*at /.test(text)) continue;
      if (text.includes(runtime.home) || /\((unknown|native.*)\)$|\[native code\]/.test(text)) continue;
      const match = FRAME.exec(text);
      if (!match) continue;
      const [, head, filename, line, column, end] = match;
      if (/^\d*$|^internal:/.test(filename)) continue; // of the engine, not of a file
      const number = Number(line);
      if (isBeyond(filename, number)) continue; // the call in the wrapper's last line
      if (column === undefined) {
        found.push({ text: `    ${head.trimStart()}${filename}:${line}${end}`, filename, line: number, column: 1 });
        continue;
      }
      const place = columnOf(filename, number, Number(column));
      found.push({ text: `    ${head.trimStart()}${filename}:${line}:${place}${end}`, filename, line: number, column: place });
    }
    return found;
  }

  function excerpt(filename, line, column) {
    const text = lineOf(filename, line);
    if (text === undefined || text.length > MAX_LINE) return `${filename}:${line}\n`;
    const indent = text.slice(0, column - 1).replace(/[^\t]/g, " ");
    return `${filename}:${line}\n${text}\n${indent}^\n\n`;
  }

  const attempt = (get, otherwise) => {
    try {
      return get() ?? otherwise;
    } catch {
      return otherwise;
    }
  };

  function isError(value) {
    // A DOMException and what the module loader throws are no native errors, but have what makes one.
    const looksLikeOne = () => typeof value.name === "string" && typeof value.message === "string";
    return attempt(() => runtime.isNativeError(value) || (typeof value === "object" && looksLikeOne()), false);
  }

  function nameOf(error) {
    const name = attempt(() => String(error.name), "Error");
    const made = attempt(() => String(error.constructor.name), "");
    return name === "Error" && made ? made : name;
  }

  /** The properties that somebody added: `code: "ENOENT"`. */
  function extras(error) {
    const shown = {};
    const usual = new Set(["name", "message", "stack", "cause", "errors", "line", "column", "sourceURL", "originalLine", "originalColumn"]);
    for (const key of attempt(() => Object.keys(error), [])) {
      if (!usual.has(key)) shown[key] = attempt(() => error[key], undefined);
    }
    return Object.keys(shown).length ? ` ${attempt(() => runtime.inspect(shown), "{}")}` : "";
  }

  function describe(error, depth, place) {
    const message = attempt(() => String(error.message), "");
    const head = message ? `${nameOf(error)}: ${message}` : nameOf(error);
    const stack = attempt(() => String(error.stack), "");
    let shown = frames(stack);
    if (shown.length === 0 && place) {
      const { filename, line, column } = place;
      shown = [{ text: `    at ${filename}:${line}:${column}`, filename, line, column }];
    }
    let text = [head, ...shown.map((frame) => frame.text)].join("\n") + extras(error);
    if (depth < MAX_DEPTH) {
      const cause = attempt(() => error.cause, undefined);
      if (cause !== undefined) text += `\n  [cause]: ${indented(cause, depth)}`;
      const errors = attempt(() => (Array.isArray(error.errors) ? error.errors : []), []);
      for (const one of errors.slice(0, 20)) text += `\n  [error]: ${indented(one, depth)}`;
    }
    return { text, first: shown[0] };
  }

  function indented(value, depth) {
    const text = isError(value) ? describe(value, depth + 1).text : attempt(() => runtime.inspect(value), "?");
    return text.replaceAll("\n", "\n  ");
  }

  /**
   * @param place { filename, line, column } to name when the error itself names none of the user's
   * @returns { name, value, traceback } of an `error` record; the traceback is what goes to standard error, too
   */
  function explain(value, place) {
    if (!isError(value)) {
      const text = attempt(() => runtime.inspect(value), "?");
      return { name: "Uncaught", value: text, traceback: cut(`Uncaught ${text}`) };
    }
    const { text, first } = describe(value, 0, place);
    const where = first ? excerpt(first.filename, first.line, first.column) : "";
    return {
      name: nameOf(value),
      value: cut(attempt(() => String(value.message), "")),
      traceback: cut(where + text),
    };
  }

  /** A text that could not be parsed. */
  function explainSyntax(filename, { message, line, column }) {
    const value = `${message} (${line}:${column})`;
    const traceback = `${excerpt(filename, line, column)}SyntaxError: ${message}\n    at ${filename}:${line}:${column}`;
    return { name: "SyntaxError", value, traceback: cut(traceback) };
  }

  function cut(text) {
    return text.length > MAX_TRACEBACK ? `${text.slice(0, MAX_TRACEBACK)}\n… (${text.length - MAX_TRACEBACK} more characters)` : text;
  }

  return { remember, setPositions, explain, explainSyntax };
};
