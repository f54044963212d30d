/*
 * Standard input as user code sees it. Each execution has another file behind descriptor 0, with its own content or none, so
 * nothing may remember input of an earlier execution. The runtime's own readers do: `Bun.stdin` is made once,
 * `console[Symbol.asyncIterator]` and `prompt` keep what they have read ahead. These are replaced here, `process.stdin` in
 * streams.js.
 */

"use strict";

const fs = require("node:fs");

const readNow = fs.readSync;
const writeNow = fs.writeSync;
const theBun = Bun;
const { file } = Bun;

let hooks;

/** The next line of descriptor 0 without its end, byte by byte so that nothing is read ahead; null at the end. */
function readLine() {
  const byte = Buffer.alloc(1);
  const bytes = [];
  for (;;) {
    let count = 0;
    try {
      count = readNow(0, byte, 0, 1, null);
    } catch (error) {
      if (error.code === "EAGAIN" || error.code === "EINTR") continue;
    }
    if (count === 0) break;
    if (byte[0] === 10) return Buffer.from(bytes).toString().replace(/\r$/, "");
    bytes.push(byte[0]);
  }
  return bytes.length > 0 ? Buffer.from(bytes).toString() : null;
}

const dialogs = {
  prompt(message = "Prompt", initial = null) {
    writeNow(1, initial === null ? `${message} ` : `${message} [${initial}] `);
    return readLine() || initial;
  },
  confirm(message = "Confirm") {
    writeNow(1, `${message} [y/N] `);
    return /^y/i.test(readLine() ?? "");
  },
  alert(message = "Alert") {
    writeNow(1, `${message} [Enter] `);
    readLine();
  },
};

/** `for await (const line of console)` */
async function* lines() {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of theBun.stdin.stream()) {
    const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

/**
 * Standard input is a FIFO. Opening it again by name waits for a writer, for ever when the input is complete already;
 * with the pipe of a shell it would not. `fs.readFileSync("/dev/stdin")` is what many programs begin with.
 */
function installDevStdin() {
  const isStdin = (name) => name === "/dev/stdin" || name === "/proc/self/fd/0" || name === "/dev/fd/0";
  const { openSync, readFileSync } = fs;
  fs.openSync = Object.defineProperty((name, ...rest) => {
    const copy = isStdin(name) ? hooks.copyOfStdin() : -1;
    return copy >= 0 ? copy : openSync(name, ...rest);
  }, "name", { value: "openSync" });
  fs.readFileSync = Object.defineProperty(
    (name, options) => readFileSync(isStdin(name) ? 0 : name, options),
    "name",
    { value: "readFileSync" },
  );
}

function install(given) {
  hooks = given;
  for (const [name, value] of Object.entries({ ...dialogs, lines })) {
    const [object, key] = name === "lines" ? [console, Symbol.asyncIterator] : [globalThis, name];
    Object.defineProperty(object, key, { value, writable: true, enumerable: true, configurable: true });
  }
  installDevStdin();
}

/** A Bun.stdin that remembers nothing. */
function renew() {
  theBun.stdin = file(0);
}

module.exports = { install, renew };
