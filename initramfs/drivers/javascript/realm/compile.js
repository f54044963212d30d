/*
 * From the code of an execution to a plan that can be run: finds out what language it is in, and has it transformed.
 *
 * Tried in this order, each result parsed by acorn before it is used:
 *
 *   1. the text itself, as JavaScript: nothing is touched and all positions are exact;
 *   2. the text with its types removed by sucrase, which keeps every line where it is;
 *   3. the text as Bun's own TypeScript transpiler prints it: for decorators and namespaces, which sucrase cannot do.
 *      Lines move there, so the plan says that positions are not to be trusted (`exact: false`).
 *
 * Some TypeScript is valid JavaScript with another meaning: `f<T>(x)` is two comparisons. A text with anything of that
 * shape skips the first step; if it was JavaScript after all, the second step does not change it.
 */

"use strict";

const { parse, transform } = require("./transform.js");

const TYPE_ARGUMENTS = /[\w$\])]<[^;(){}=]*(?:\{[^{}]*\}[^;(){}=]*)*>\s*[(`]/;
const LEFT_OUT_BY_SUCRASE = /\b(?:namespace|module)\s+[\w$.]+\s*\{/;
const PARAMETER_DECORATOR = /[(,]\s*@[\w$]/;

exports.makeCompiler = function (runtime, scope) {
  const acorn = require("acorn");

  function parseJavaScript(text) {
    return { text, parsed: parse(acorn, text), typescript: false, exact: true };
  }

  function removeTypes(text) {
    if (LEFT_OUT_BY_SUCRASE.test(text)) throw new Error("not for sucrase");
    const options = { transforms: ["typescript"], disableESTransforms: true, keepUnusedImports: true };
    const { code } = loadSucrase().transform(text, options);
    return { text: code, parsed: parse(acorn, code), typescript: true, exact: true };
  }

  /** Loaded when first needed; a driver without it is broken, which must not look like a syntax error of the user's. */
  function loadSucrase() {
    try {
      return require("sucrase");
    } catch (error) {
      throw Object.assign(error, { isBroken: true });
    }
  }

  function transpile(text) {
    const legacy = PARAMETER_DECORATOR.test(text);
    const code = (legacy ? runtime.transpileLegacyDecorators : runtime.transpile)(text);
    return { text: code, parsed: parse(acorn, code), typescript: true, exact: false };
  }

  function read(text) {
    const steps = TYPE_ARGUMENTS.test(text) ? [removeTypes, parseJavaScript] : [parseJavaScript, removeTypes];
    let first;
    for (const step of steps) {
      try {
        return step(text);
      } catch (error) {
        if (error.isBroken) throw error;
        if (step === parseJavaScript) first = error;
      }
    }
    try {
      return transpile(text);
    } catch (error) {
      throw syntaxError(error, first);
    }
  }

  /**
   * The best message there is: Bun's, as for a file, unless Bun accepted the text and only acorn did not (a `return` at
   * top level, for instance). Lines and columns count from 1.
   */
  function syntaxError(last, first) {
    if (last.position) return { message: last.message, line: last.position.line, column: last.position.column };
    const { loc, message } = first ?? last;
    if (!loc) return { message, line: 1, column: 1 };
    return { message: message.replace(/ \(\d+:\d+\)$/, ""), line: loc.line, column: loc.column + 1 };
  }

  /** @throws { message, line, column } when the text is in neither language */
  return function compile(text) {
    const { text: code, parsed, typescript, exact } = read(text);
    return { ...transform(code, parsed, scope), typescript, exact };
  };
};
