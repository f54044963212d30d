/*
 * The JavaScript and TypeScript driver: one long-lived Bun process that runs one piece of code after another and keeps
 * what they define. `../README.md` has the contract with the agent, `README.md` beside this file what user code sees.
 *
 * User code shares this process and its global object, and may replace anything in it: `Array.prototype.push`,
 * `Promise`, `JSON.parse`. So the driver lives in two places:
 *
 *   driver.js, user.js   the ordinary realm. They run once, before any user code: they take private references to what
 *                        the driver needs of the runtime, and make the objects that user code sees.
 *   realm/               everything that works between and after executions. It runs in a second realm (a `vm` context)
 *                        with prototypes of its own, which user code has no way to reach. It may therefore use arrays,
 *                        strings and promises as usual; only what it takes from the ordinary realm has to come through
 *                        the references that `runtime` below holds.
 *
 * The parsers (acorn, sucrase) are loaded into the second realm too.
 */

"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");
const { createRequire } = require("node:module");
const { isNativeError } = require("node:util/types");
const { dlopen } = require("bun:ffi");
const { setRandomSeed } = require("bun:jsc");
const user = require("./user.js");

const dir = process.argv[2];
if (!dir) {
  fs.writeSync(2, "usage: driver.js DIRECTORY (the context's folder, made by the agent)\n");
  process.exit(2);
}

const { symbols: libc } = dlopen("libc.so.6", {
  dup2: { args: ["int", "int"], returns: "int" },
  kill: { args: ["int", "int"], returns: "int" },
  poll: { args: ["ptr", "u64", "int"], returns: "int" },
  fcntl: { args: ["int", "int", "int"], returns: "int" },
  memset: { args: ["ptr", "int", "u64"], returns: "ptr" },
});

// The names of the pristine global object: declaring one of them must not change what libraries find there.
const globalNames = Object.getOwnPropertyNames(globalThis);

const exitCode = Object.getOwnPropertyDescriptor(process, "exitCode");
const transpiler = new Bun.Transpiler({
  loader: "ts",
  target: "bun",
  deadCodeElimination: false,
  inline: false,
  trimUnusedImports: false,
});
const legacyDecorators = new Bun.Transpiler({
  loader: "ts",
  target: "bun",
  deadCodeElimination: false,
  inline: false,
  trimUnusedImports: false,
  tsconfig: JSON.stringify({ compilerOptions: { experimentalDecorators: true, emitDecoratorMetadata: true } }),
});
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

/** What the driver's realm may use of the ordinary one: taken now, out of the reach of later code. */
const runtime = {
  dir,
  home: path.dirname(module.filename),
  globalNames,
  global: globalThis,
  process,
  bun: Bun,
  pid: process.pid,
  exit: process.exit.bind(process),
  reallyExit: process.reallyExit.bind(process),
  cwd: process.cwd.bind(process),
  readExitCode: exitCode.get.bind(process),
  writeExitCode: exitCode.set.bind(process),
  listenerCount: process.listenerCount.bind(process),
  listeners: process.listeners.bind(process),
  on: process.on.bind(process),
  emit: process.emit.bind(process),

  dup2: libc.dup2,
  kill: libc.kill,
  poll: libc.poll,
  fcntl: libc.fcntl,
  memset: libc.memset,
  openSync: fs.openSync,
  closeSync: fs.closeSync,
  writeSync: fs.writeSync,
  readFileSync: fs.readFileSync,
  statSync: fs.statSync,
  exists: fs.existsSync,

  encode: encoder.encode.bind(encoder),
  decode: decoder.decode.bind(decoder),
  Int32Array,
  Uint8Array,

  file: Bun.file,
  stream: Blob.prototype.stream,
  getReader: ReadableStream.prototype.getReader,
  readChunk: ReadableStreamDefaultReader.prototype.read,
  cancel: ReadableStreamDefaultReader.prototype.cancel,
  then: Promise.prototype.then,
  promiseResolve: Promise.resolve.bind(Promise),
  setImmediate,
  now: performance.now.bind(performance),

  random: Math.random,
  setRandomSeed,
  randomUUID: crypto.randomUUID.bind(crypto),
  getRandomValues: crypto.getRandomValues.bind(crypto),

  Script: vm.Script,
  runInThisContext: vm.Script.prototype.runInThisContext,
  resolve: Bun.resolveSync,
  importModule,
  transpile: transpiler.transformSync.bind(transpiler),
  transpileLegacyDecorators: legacyDecorators.transformSync.bind(legacyDecorators),

  inspect: Bun.inspect,
  stringify: JSON.stringify,
  isNativeError,
  objectPrototype: Object.prototype,
  SyntaxError,
  TypeError,
};

/** `import(name)` as from a module in the working directory. */
async function importModule(name, options) {
  return import(runtime.resolve(name, runtime.cwd()), options);
}

const context = vm.createContext({}, { name: "driver" });
const natives = { Script: vm.Script, runInContext: vm.Script.prototype.runInContext, readFileSync: fs.readFileSync, context };
const loaderFile = path.join(runtime.home, "realm", "loader.js");
const makeLoader = new vm.Script(fs.readFileSync(loaderFile, "utf8"), { filename: loaderFile }).runInContext(context);
// Sucrase requires the last one for source maps only, which are not asked for.
const packages = findPackages(["acorn", "sucrase", "lines-and-columns", "ts-interface-checker"]);
const load = makeLoader(natives, { ...packages, "@jridgewell/gen-mapping": null });
load(path.join(runtime.home, "realm", "loop.js")).start(runtime, user);

/** Where the driver's npm packages are: above this file in a checkout (initramfs/package.json), else where the root image has them. */
function findPackages(names) {
  let from = createRequire(module.filename);
  try {
    from.resolve(names[0]);
  } catch {
    from = createRequire("/usr/lib/driver.js");
  }
  return Object.fromEntries(names.map((name) => [name, from.resolve(name)]));
}
