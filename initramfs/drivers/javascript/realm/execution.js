/*
 * One execution, from the line on D/control to `done` on D/events.
 *
 *   idle ──line──▶ preparing ──▶ loading ──▶ running ──▶ settling ──▶ idle
 *
 *   preparing  descriptors, environment and streams are set; the code is compiled
 *   loading    the modules of import statements are loaded, one after another; then the names are defined
 *   running    the scripts run. The part up to the first `await` runs under a watch: SIGINT ends it at any point, also in
 *              an endless loop. What comes later runs from the event loop, where SIGINT is an event like any other.
 *   settling   the value of the last expression (awaited) or the error is known. One turn of the event loop follows, so
 *              that unhandled rejections of this execution still count, then `finish`
 *
 * Timers, servers and promises that user code started and did not await go on afterwards; what they print goes to the
 * idle streams.
 *
 * The last execution of a context ends with the process instead, as a program does: after `settling` everything stays in
 * place until the event loop has nothing left to do, and the runtime then ends by itself (`beforeExit`, `exit`, its exit code).
 *
 * These end an execution early, from any of the states: `process.exit`, an uncaught exception or unhandled rejection, SIGINT
 * (130), and an event loop that has nothing left to do while something is awaited (13, as in Node).
 */

"use strict";

const { makeBindings } = require("./bindings.js");
const { makeCompiler } = require("./compile.js");
const { makeReporter } = require("./report.js");
const { makeValues } = require("./values.js");

const SIGINT = 2;
const INTERRUPTED = 128 + SIGINT;
const NEVER_SETTLED = 13;
const UNWIND_MS = 500;
const MAX_RECORD_BYTES = 15 << 20;

/**
 * @param idle called when an execution is over and everything of it has been written
 */
exports.makeExecutor = function (runtime, user, descriptors, idle) {
  const bindings = makeBindings(runtime, user);
  const compile = makeCompiler(runtime, bindings);
  const reporter = makeReporter(runtime);
  const values = makeValues(runtime);
  /** The execution in progress: { id, token, folder, filename, isLast, watched, settled, restore }, or null. */
  let current = null;
  /** The process is ending: listeners for `exit` run. */
  let leaving = false;

  // --- start -------------------------------------------------------------------------------------------------------

  function begin({ id, token, hasStdin, hasVariables, isLast, filename }) {
    const folder = `${runtime.dir}/${id}`;
    current = { id, token, folder, filename, isLast, watched: false, settled: false, restore: [] };
    descriptors.attach(folder, hasStdin);
    listen();
    if (hasVariables) setEnvironment(current);
    user.prepare(filename);
    runtime.writeExitCode(0); // undefined would not reset it
    const text = runtime.decode(runtime.readFileSync(`${folder}/code`)).replace(/^\uFEFF/, "");
    reporter.remember(filename, text);
    let plan;
    try {
      plan = compile(text);
    } catch (error) {
      if (error.isBroken) throw error;
      fail(current, reporter.explainSyntax(filename, error));
      return;
    }
    reporter.setPositions(filename, plan);
    run(current, plan);
  }

  function setEnvironment(execution) {
    const { env } = runtime.process;
    const records = runtime.decode(runtime.readFileSync(`${execution.folder}/env`)).split("\0");
    for (const record of records) {
      const at = record.indexOf("=");
      if (at <= 0) continue;
      const name = record.slice(0, at);
      execution.restore.push([name, env[name]]);
      env[name] = record.slice(at + 1);
    }
  }

  async function run(execution, plan) {
    let place;
    try {
      const modules = [];
      for (const one of plan.imports) {
        place = one;
        modules.push(await importNow(one));
        if (current !== execution) return;
      }
      const scripts = [plan.hoisted, plan.code].filter((code) => code !== null).map((code) => script(code, execution.filename));
      bindings.declare(plan);
      plan.imports.forEach((one, index) => {
        place = one;
        bindImports(one, modules[index], plan);
      });
      // A SIGINT that came while this was being prepared is delivered before the watch begins.
      await new Promise((resolve) => runtime.setImmediate(resolve));
      if (current !== execution) return;
      launch(execution, plan, scripts);
    } catch (error) {
      settleError(execution, error, place);
    }
  }

  function script(code, filename) {
    return new runtime.Script(code, {
      filename,
      importModuleDynamically: (name, _script, attributes) => importModule(name, attributes),
    });
  }

  // --- modules -----------------------------------------------------------------------------------------------------

  /** A promise of the ordinary realm, as `import()` has to give. */
  function importModule(name, attributes) {
    const options = attributes && Object.keys(attributes).length > 0 ? { with: { ...attributes } } : undefined;
    return runtime.importModule(String(name), options);
  }

  function importNow({ source, attributes }) {
    return new Promise((resolve, reject) => {
      // A namespace may have an export named `then`; it must not be taken for a promise.
      Reflect.apply(runtime.then, importModule(source, attributes), [(exports) => resolve({ exports }), reject]);
    });
  }

  function bindImports({ source, names }, { exports }, plan) {
    const isBuiltin = /^(?:node|bun):/.test(runtime.resolve(source, runtime.cwd()));
    const from = upToDate(source, exports);
    for (const { local, imported } of names) {
      if (imported !== null && !(imported in from)) {
        if (plan.typescript && !plan.isUsed(local)) continue; // a type
        throw new runtime.SyntaxError(`Export named '${imported}' not found in module '${source}'.`);
      }
      bindings.bindImport(local, imported === null ? exports : from, imported, isBuiltin);
    }
  }

  /** The exports of these two are as of their first import, but stdin is another one in each execution. */
  function upToDate(source, exports) {
    if (source === "bun") return { ...exports, stdin: runtime.bun.stdin };
    if (!/^(?:node:)?process$/.test(source)) return exports;
    const { stdin, stdout, stderr, argv } = runtime.process;
    return { ...exports, stdin, stdout, stderr, argv };
  }

  // --- running -----------------------------------------------------------------------------------------------------

  /**
   * The scripts start from the microtask queue and by tail calls, so that no frame of ours is below the user's. That
   * works only as long as `start` is strict code that returns the call itself.
   */
  function launch(execution, plan, scripts) {
    const options = { breakOnSigint: true, displayErrors: false };
    const steps = scripts.map((one) => {
      Reflect.defineProperty(one, "runInThisContext", { value: runtime.runInThisContext });
      return () => {
        if (plan.inShadow) bindings.open();
        return one.runInThisContext(options);
      };
    });
    const main = steps.pop();
    for (const step of steps) step();
    execution.watched = true;
    const begun = Reflect.apply(runtime.then, runtime.promiseResolve(), [main]);
    Reflect.apply(runtime.then, runtime.promiseResolve(), [() => endWatch(execution)]);
    Reflect.apply(runtime.then, begun, [
      (value) => settleValue(execution, plan.hasValue ? value : undefined),
      (error) => settleError(execution, error),
    ]);
  }

  /**
   * The runtime forgets a SIGINT that comes in the last moment of the watched part: too late to end the script, too early
   * for the event loop. The agent leaves a file before it sends one, which tells.
   */
  function endWatch(execution) {
    execution.watched = false;
    runtime.setImmediate(() => {
      if (current === execution && runtime.exists(`${execution.folder}/interrupted`)) interrupted(execution);
    });
  }

  function settleValue(execution, value) {
    if (current !== execution) return;
    try {
      if (value !== undefined) record(execution, "result", value);
    } catch (error) {
      settleError(execution, error);
      return;
    }
    execution.settled = true;
    if (!execution.isLast) runtime.setImmediate(() => finish(execution, exitCodeNow()));
  }

  /** @param place the import statement at fault, for errors without a stack */
  function settleError(execution, error, place) {
    if (current !== execution || error === user.unwinding) return;
    if (isInterruption(error)) interrupted(execution);
    else fail(execution, reporter.explain(error, place && { filename: execution.filename, ...place }));
  }

  function isInterruption(error) {
    try {
      return error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED";
    } catch {
      return false; // null, or something whose properties cannot be read
    }
  }

  function exitCodeNow() {
    const code = Number(runtime.readExitCode() ?? 0);
    return Number.isInteger(code) ? code & 255 : 1;
  }

  // --- results -----------------------------------------------------------------------------------------------------

  function record(execution, kind, value) {
    const bundle = values.ownBundle(value);
    if (bundle && typeof bundle.then === "function") return;
    let parts = values.parts(value, bundle);
    let room = MAX_RECORD_BYTES;
    parts = parts.filter(([, bytes]) => (room -= bytes.length) >= 0);
    const header = { token: execution.token, kind, parts: parts.map(([mime, bytes]) => [mime, bytes.length]) };
    send(execution, header, parts.map(([, bytes]) => bytes));
  }

  function send(execution, header, bodies = []) {
    descriptors.send(`${execution.folder}/results`, [runtime.encode(`${JSON.stringify(header)}\n`), ...bodies]);
  }

  /** Ends the execution with an error: shown on standard error and given as a record. */
  function fail(execution, { name, value, traceback }, code = 1) {
    descriptors.writeAll(2, runtime.encode(`${traceback}\n`));
    send(execution, { token: execution.token, kind: "error", parts: [], name, value, traceback });
    if (execution.isLast) leave(code);
    finish(execution, code);
  }

  function interrupted(execution) {
    const value = "the execution was interrupted";
    send(execution, { token: execution.token, kind: "error", parts: [], name: "Interrupted", value, traceback: "" });
    if (execution.isLast) runtime.reallyExit(INTERRUPTED); // as by a signal: nobody is asked
    finish(execution, INTERRUPTED);
  }

  /** Ends the process as `process.exit` does. */
  function leave(code) {
    if (leaving) runtime.reallyExit(code); // an `exit` listener threw
    runtime.exit(code);
  }

  /** Everything has been written: takes the descriptors away, restores the environment and says `done`. */
  function finish(execution, code, silently = false) {
    if (current !== execution) return;
    current = null;
    user.finish();
    runtime.writeExitCode(0); // undefined would not reset it
    for (const [name, value] of execution.restore.toReversed()) {
      if (value === undefined) delete runtime.process.env[name];
      else runtime.process.env[name] = value;
    }
    if (silently) descriptors.silence();
    else descriptors.detach();
    descriptors.send(`${runtime.dir}/events`, [runtime.encode(`${execution.token} done ${code}\n`)]);
    runtime.setImmediate(() => {
      if (silently) descriptors.detach();
      idle();
    });
  }

  // --- ends from elsewhere -------------------------------------------------------------------------------------------

  /**
   * `process.exit(code)`: the execution is over at once; the caller then throws. What user code still does while that
   * unwinds (a `catch` that prints) is not part of the program any more and is not kept. In the watched part the engine
   * is made to end the script, which no `catch` or `finally` sees, just as in a process that has ended.
   */
  function exit(code) {
    const execution = current;
    if (!execution) return;
    if (execution.isLast) runtime.exit(code ?? exitCodeNow());
    finish(execution, code ?? exitCodeNow(), true);
    if (!execution.watched) return;
    runtime.kill(runtime.pid, SIGINT);
    for (const end = runtime.now() + UNWIND_MS; runtime.now() < end; );
  }

  function onUncaught(error) {
    if (error === user.unwinding || runtime.listenerCount("uncaughtException") > 1) return;
    stop(error);
  }

  function onRejection(error, promise) {
    if (error === user.unwinding || runtime.listenerCount("unhandledRejection") > 1) return;
    if (runtime.listenerCount("uncaughtException") > 1) runtime.emit("uncaughtException", error, "unhandledRejection");
    else stop(error);
  }

  function stop(error) {
    const explained = reporter.explain(error);
    if (current) fail(current, explained);
    else descriptors.writeAll(2, runtime.encode(`${explained.traceback}\n`));
  }

  function onInterrupt() {
    if (current && runtime.listenerCount("SIGINT") === 1) interrupted(current);
  }

  /** Nothing can wake the event loop any more, and the execution is not over: what it awaits will never come. */
  function onDrained() {
    if (!current || current.settled) return;
    const value = "nothing is left that could settle what is awaited at top level";
    fail(current, { name: "Unsettled", value, traceback: `Warning: ${value}` }, NEVER_SETTLED);
  }

  function onExit() {
    leaving = true;
  }

  /** User code may have removed our listeners. */
  function listen() {
    const wanted = [
      ["uncaughtException", onUncaught],
      ["unhandledRejection", onRejection],
      ["SIGINT", onInterrupt],
      ["beforeExit", onDrained],
      ["exit", onExit],
    ];
    for (const [event, listener] of wanted) {
      if (!runtime.listeners(event).includes(listener)) runtime.on(event, listener);
    }
  }

  function display(value) {
    if (current) record(current, "display", value);
    else descriptors.writeAll(1, runtime.encode(`${runtime.inspect(value)}\n`));
  }

  user.install({
    exit,
    display,
    write: (fd, bytes) => void descriptors.writeAll(fd, bytes),
    copyOfStdin: descriptors.copyOfStdin,
  });
  listen();
  return { begin };
};
