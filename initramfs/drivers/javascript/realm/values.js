/*
 * A value as MIME parts: what a `result` or `display` record carries.
 *
 *   text/plain          always, as the console shows it
 *   application/json    plain data only: null, booleans, finite numbers, strings, arrays and objects of these
 *   anything else       from the value's own method `[Symbol.for("hayfork.display")]()`, or `[Symbol.for("Jupyter.display")]()`
 *                       as Deno has it: an object of MIME type → string, bytes, or (for JSON types) data
 */

"use strict";

const MAX_TEXT = 1 << 20;
const MAX_JSON_NODES = 100_000;
const MAX_JSON_BYTES = 4 << 20;
const MAX_PART_BYTES = 12 << 20;
const DISPLAY_METHODS = [Symbol.for("hayfork.display"), Symbol.for("Jupyter.display")];

exports.makeValues = function (runtime) {
  function plainText(value) {
    let text;
    try {
      text = runtime.inspect(value);
    } catch (error) {
      text = `[cannot be shown: ${typeof value}]`;
    }
    return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}… (${text.length - MAX_TEXT} more characters)` : text;
  }

  function isPlain(value) {
    const open = new Set();
    let nodes = 0;
    const look = (one) => {
      if (one === null || typeof one === "string" || typeof one === "boolean") return true;
      if (typeof one === "number") return Number.isFinite(one);
      if (typeof one !== "object" || open.has(one) || ++nodes > MAX_JSON_NODES || open.size > 200) return false;
      const isArray = Array.isArray(one);
      const prototype = Reflect.getPrototypeOf(one);
      if (!isArray && prototype !== runtime.objectPrototype && prototype !== null) return false;
      open.add(one);
      const keys = Reflect.ownKeys(one);
      if (isArray && keys.length !== one.length + 1) return false;
      for (const key of keys) {
        if (isArray && key === "length") continue;
        const descriptor = Reflect.getOwnPropertyDescriptor(one, key);
        if (typeof key === "symbol" || !("value" in descriptor) || !look(descriptor.value)) return false;
      }
      open.delete(one);
      return true;
    };
    return look(value);
  }

  function json(value) {
    try {
      if (!isPlain(value)) return null;
      const bytes = runtime.encode(runtime.stringify(value));
      return bytes.length <= MAX_JSON_BYTES ? bytes : null;
    } catch {
      return null;
    }
  }

  function bytesOf(mime, value) {
    if (typeof value === "string") return runtime.encode(value);
    if (ArrayBuffer.isView(value)) return new runtime.Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    if (/^application\/(?:.*\+)?json$/.test(mime)) return runtime.encode(runtime.stringify(value));
    return null;
  }

  /** What the value's own display method gives, or null. Its errors are the user's and are thrown. */
  function ownBundle(value) {
    if ((typeof value !== "object" && typeof value !== "function") || value === null) return null;
    for (const method of DISPLAY_METHODS) {
      if (typeof value[method] === "function") return value[method]();
    }
    return null;
  }

  /** @returns list of [MIME type, bytes], "text/plain" first */
  function parts(value, bundle) {
    const found = new Map();
    for (const mime of bundle ? Object.keys(bundle) : []) {
      const bytes = bytesOf(mime, bundle[mime]);
      if (bytes && bytes.length <= MAX_PART_BYTES && /^[\w.+-]+\/[\w.+-]+$/.test(mime)) found.set(mime, bytes);
    }
    const text = found.get("text/plain") ?? runtime.encode(plainText(value));
    found.delete("text/plain");
    if (!bundle) {
      const data = json(value);
      if (data) found.set("application/json", data);
    }
    return [["text/plain", text], ...found];
  }

  return { parts, ownBundle };
};
