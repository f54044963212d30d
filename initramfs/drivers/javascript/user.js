/*
 * What user code sees beside the runtime's own globals, made in the ordinary realm so that `instanceof` and prototypes
 * are what user code expects: process.stdin/stdout/stderr, process.exit, require, module, import.meta, display.
 *
 * `hooks` are the driver's functions (realm/execution.js): they are called with plain values and do the work.
 */

"use strict";

const { read, closeSync } = require("node:fs");
const path = require("node:path");
const Module = require("node:module");
const standardInput = require("./stdin.js");

// Taken before user code can replace them. What runs between executions (`prepare`) uses nothing else.
const world = globalThis;
const theProcess = process;
const { createRequire } = Module;
const { resolveSync } = Bun;
const { isAbsolute, join, dirname, basename } = path;
const { defineProperty, getOwnPropertyDescriptor } = Reflect;
const cwd = process.cwd.bind(process);
const plainKill = process.kill.bind(process);
const later = setImmediate;
const { pid, execPath } = process;

const hooks = {};

function define(object, name, value, enumerable = true) {
  defineProperty(object, name, { __proto__: null, value, writable: true, enumerable, configurable: true });
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
    later(() => plainKill(target, signal));
    return true;
  }
  return plainKill(target, signal);
}

// --- modules -------------------------------------------------------------------------------------------------------

let anchor = "";
let requireHere;
let filename = "";
const main = new Module("[execution]", null);

/** Modules are found from the working directory, as in an interactive Node. */
function place(name) {
  const here = cwd();
  if (here !== anchor) {
    anchor = here;
    main.filename = join(anchor, "[execution].js");
    requireHere = createRequire(main.filename);
  }
  filename = isAbsolute(name) ? name : join(anchor, name);
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
  define(world, "require", theRequire, false);
  define(world, "module", main, false);
  define(world, "exports", main.exports, false);
}

const fileUrl = (name) => require("node:url").pathToFileURL(name).href;

function importMeta() {
  return {
    url: fileUrl(filename),
    main: true,
    dir: dirname(filename),
    dirname: dirname(filename),
    file: basename(filename),
    filename,
    path: filename,
    env: theProcess.env,
    require: theRequire,
    resolve: (id) => {
      const found = resolveSync(id, anchor);
      return isAbsolute(found) ? fileUrl(found) : found;
    },
    resolveSync: (id, from = anchor) => resolveSync(id, from),
  };
}

/** The property of the global object for `import { imported as … }`: reads the module's export, cannot be assigned. */
function liveBinding(namespace, imported) {
  return {
    __proto__: null,
    get: () => namespace[imported],
    set: () => {
      throw new TypeError("Attempted to assign to readonly property.");
    },
    enumerable: true,
    configurable: true,
  };
}

// --- before each execution -----------------------------------------------------------------------------------------

/** A global property that cannot be assigned to, in sloppy code either. */
function forbidAssignment(name) {
  defineProperty(world, name, { ...liveBinding({}, ""), enumerable: false });
}

// process.stdin, process.stdout and process.stderr are made when they are first used: the library behind them takes
// longer to load than everything else of the driver, and most code only calls console.log.
const made = { __proto__: null, stdin: null, stdout: null, stderr: null };
const accessors = { __proto__: null, stdin: lazily("stdin"), stdout: lazily("stdout"), stderr: lazily("stderr") };

function lazily(name) {
  return {
    __proto__: null,
    get: () => (made[name] ??= require("./streams.js").open(name, hooks)),
    set: (value) => define(theProcess, name, value),
    enumerable: true,
    configurable: true,
  };
}

function renewStream(name) {
  const stream = made[name];
  if (stream && (name === "stdin" || stream.destroyed || stream.writableEnded)) made[name] = null;
  if (getOwnPropertyDescriptor(theProcess, name)?.get !== accessors[name].get) {
    defineProperty(theProcess, name, accessors[name]);
  }
}

/** Puts right what an earlier execution replaced, closed or used up. */
function prepare(name) {
  place(name);
  define(world, "__filename", filename, false);
  define(world, "__dirname", dirname(filename), false);
  define(theProcess, "argv", [execPath, filename]);
  finish();
  renewStream("stdin");
  renewStream("stdout");
  renewStream("stderr");
  standardInput.renew();
  if (theProcess.exit !== exit) define(theProcess, "exit", exit);
}

/** The input of an execution ends with it. */
function finish() {
  if (made.stdin) require("./streams.js").release(made.stdin);
}

function install(given) {
  Object.assign(hooks, given, { read, closeSync });
  define(theProcess, "kill", kill);
  theProcess.execArgv = ["--no-install"];
  installRequire();
  standardInput.install(hooks);
  define(world, "display", function display(...values) {
    for (const value of values) hooks.display(value);
  }, false);
  prepare("[execution]");
}

module.exports = { install, prepare, finish, importMeta, liveBinding, forbidAssignment, unwinding };
