/*
 * What user code sees beside the runtime's own globals, made in the ordinary realm so that `instanceof` and prototypes
 * are what user code expects: process.stdin/stdout/stderr, process.exit, require, module, import.meta, display.
 *
 * `hooks` are the driver's functions (realm/execution.js): they are called with plain values and do the work.
 *
 * process.stdout and process.stderr write at once and completely, as Node's do for pipes. Bun's own are bound to the file
 * that was behind the descriptor when they were first used, and write later: output would end up in the wrong execution.
 */

"use strict";

const fs = require("node:fs");
const path = require("node:path");
const Module = require("node:module");
const { pathToFileURL } = require("node:url");
const { Readable, Writable } = require("node:stream");

const { createRequire } = Module;
const readFile = fs.read;
const closeFile = fs.closeSync;
const { resolveSync } = Bun;
const cwd = process.cwd.bind(process);
const processKill = process.kill;
const later = setImmediate;
const pid = process.pid;

const hooks = {};

class WriteStream extends Writable {
  constructor(fd) {
    super({ decodeStrings: true, emitClose: false });
    this.fd = fd;
    this._type = "pipe";
    this._isStdio = true;
  }

  _write(chunk, _encoding, done) {
    hooks.write(this.fd, chunk);
    done();
  }

  // As in Node: the process's own streams cannot be destroyed.
  _destroy(error, done) {
    done(error);
  }

  destroySoon() {
    this.end();
  }
}

/** The execution has ended: no more input from that stream. */
let release;

/** Descriptor 0 of one execution. It reads from a copy, so that it never takes input meant for a later execution. */
class ReadStream extends Readable {
  #copy = -1;
  #over = false;

  constructor() {
    super({ highWaterMark: 65536, emitClose: false });
    this.fd = 0;
    this._isStdio = true;
  }

  _read(size) {
    if (this.#copy < 0 && !this.#over) this.#copy = hooks.copyOfStdin();
    if (this.#over || this.#copy < 0) {
      this.push(null);
      return;
    }
    const buffer = Buffer.allocUnsafe(size);
    readFile(this.#copy, buffer, 0, size, null, (error, count) => {
      if (error || count === 0) {
        this.#release();
        this.push(null);
      } else {
        this.push(buffer.subarray(0, count));
      }
    });
  }

  #release() {
    if (this.#copy >= 0) closeFile(this.#copy);
    this.#copy = -1;
    this.#over = true;
  }

  static {
    release = (stream) => stream.#release();
  }
}

function define(object, name, value, enumerable = true) {
  Object.defineProperty(object, name, { value, writable: true, enumerable, configurable: true });
}

// --- process.exit and process.kill ---------------------------------------------------------------------------------

/** What process.exit throws. Nothing of it is ever shown. */
const unwinding = Object.assign(new Error("process.exit was called"), { stack: "" });

function invalid(kind, code, message) {
  return Object.assign(new kind(message), { code });
}

/** The exit status that `process.exit(code)` asks for, or undefined for "as process.exitCode says". */
function exitStatus(code) {
  if (code === undefined || code === null) return undefined;
  const number = typeof code === "string" && code.trim() !== "" ? Number(code) : code;
  if (typeof number !== "number" || Number.isNaN(number)) {
    const message = `The "code" argument must be of type number. Received type ${typeof code} (${Bun.inspect(code)})`;
    throw invalid(TypeError, "ERR_INVALID_ARG_TYPE", message);
  }
  if (!Number.isInteger(number)) {
    const message = `The value of "code" is out of range. It must be an integer. Received ${number}`;
    throw invalid(RangeError, "ERR_OUT_OF_RANGE", message);
  }
  return number & 255;
}

/** Ends the execution, not the process: see `exit` in realm/execution.js. */
function exit(code) {
  hooks.exit(exitStatus(code));
  throw unwinding;
}

/** A SIGINT to oneself waits until the event loop turns, so that a listener gets it as in the plain runtime. */
function kill(target, signal) {
  if (target === pid && (signal === "SIGINT" || signal === 2)) {
    later(() => processKill.call(process, target, signal));
    return true;
  }
  return processKill.call(process, target, signal);
}

// --- modules -------------------------------------------------------------------------------------------------------

let anchor = "";
let requireHere;
let filename = "";
const main = new Module("[execution]", null);

/** Modules are found from the working directory, as in an interactive Node. */
function place(name) {
  filename = path.isAbsolute(name) ? name : path.join(anchor, name);
  if (cwd() === anchor) return;
  anchor = cwd();
  requireHere = createRequire(path.join(anchor, "[execution].js"));
  main.filename = path.join(anchor, "[execution].js");
  main.paths = requireHere.resolve.paths("x") ?? [];
  filename = path.isAbsolute(name) ? name : path.join(anchor, name);
}

const theRequire = function require(id) {
  return requireHere(id);
};

function installRequire() {
  theRequire.resolve = Object.assign((id, options) => requireHere.resolve(id, options), {
    paths: (id) => requireHere.resolve.paths(id),
  });
  theRequire.main = main;
  theRequire.cache = require.cache;
  theRequire.extensions = require.extensions;
  main.require = theRequire;
  define(globalThis, "require", theRequire, false);
  define(globalThis, "module", main, false);
  define(globalThis, "exports", main.exports, false);
}

function importMeta() {
  const url = pathToFileURL(filename).href;
  return {
    url,
    main: true,
    dir: path.dirname(filename),
    dirname: path.dirname(filename),
    file: path.basename(filename),
    filename,
    path: filename,
    env: process.env,
    require: theRequire,
    resolve: (id) => {
      const found = resolveSync(id, anchor);
      return path.isAbsolute(found) ? pathToFileURL(found).href : found;
    },
    resolveSync: (id, from = anchor) => resolveSync(id, from),
  };
}

/** The property of the global object for `import { imported as … }`: reads the module's export, cannot be assigned. */
function liveBinding(namespace, imported) {
  return {
    get: () => namespace[imported],
    set: () => {
      throw new TypeError("Attempted to assign to readonly property.");
    },
    enumerable: true,
    configurable: true,
  };
}

// --- before each execution -----------------------------------------------------------------------------------------

let stdin;

/** Puts right what an earlier execution replaced, closed or used up. */
function prepare(name) {
  place(name);
  define(globalThis, "__filename", filename, false);
  define(globalThis, "__dirname", path.dirname(filename), false);
  process.argv = [process.execPath, filename];
  for (const [key, fd] of [["stdout", 1], ["stderr", 2]]) {
    const stream = process[key];
    const usable = stream instanceof WriteStream && !stream.destroyed && !stream.writableEnded && stream.fd === fd;
    if (!usable) define(process, key, new WriteStream(fd));
  }
  if (stdin) release(stdin);
  stdin = new ReadStream();
  define(process, "stdin", stdin);
  if (process.exit !== exit) define(process, "exit", exit);
}

/** The input of an execution ends with it. */
function finish() {
  release(stdin);
}

function install(given) {
  Object.assign(hooks, given);
  define(process, "exit", exit);
  define(process, "kill", kill);
  process.execArgv = ["--no-install"];
  installRequire();
  define(globalThis, "display", function display(...values) {
    for (const value of values) hooks.display(value);
  }, false);
  prepare("[execution]");
}

module.exports = { install, prepare, finish, importMeta, liveBinding, unwinding };
