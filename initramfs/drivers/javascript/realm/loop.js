/*
 * The driver's loop: waits for the agent's next line, has it executed, waits again.
 *
 * Waiting is a read of D/control that the event loop watches (epoll, no polling), so timers, servers and promises of user
 * code go on between executions and an idle driver uses no CPU. The descriptor is closed before user code runs. The agent
 * writes nothing behind the line of an execution until that is done, so nothing is lost by closing; between lines to renew
 * the descriptor stays open.
 */

"use strict";

const { makeDescriptors } = require("./descriptors.js");
const { makeExecutor } = require("./execution.js");
const { makeRenewer } = require("./renew.js");

const BROKEN = 70;

exports.start = function (runtime, user) {
  const descriptors = makeDescriptors(runtime);
  const executor = makeExecutor(runtime, user, descriptors, wait);
  const renew = makeRenewer(runtime);
  tell("ready");
  wait();

  function tell(line) {
    descriptors.send(`${runtime.dir}/events`, [runtime.encode(`${line}\n`)]);
  }

  function wait() {
    guard(() => {
      const stream = Reflect.apply(runtime.stream, runtime.file(`${runtime.dir}/control`), []);
      const reader = Reflect.apply(runtime.getReader, stream, []);
      read(reader, "");
    });
  }

  function read(reader, before) {
    const chunk = Reflect.apply(runtime.readChunk, reader, []);
    Reflect.apply(runtime.then, chunk, [
      ({ value, done }) => guard(() => {
        // The agent holds the FIFO open: its end means that the agent is gone.
        if (done) runtime.reallyExit(0);
        if (!ArrayBuffer.isView(value)) throw new Error("reading D/control gave no bytes");
        const text = renewIfAsked(before + runtime.decode(value));
        if (!text.endsWith("\n")) {
          read(reader, text);
          return;
        }
        const closed = Reflect.apply(runtime.cancel, reader, []);
        Reflect.apply(runtime.then, closed, [() => guard(() => executor.begin(parse(text))), broken]);
      }),
      broken,
    ]);
  }

  /** Carries out the lines to renew that `text` begins with, and returns the rest. */
  function renewIfAsked(text) {
    for (let line; (line = /^renew ([0-9a-f]{64})\n/.exec(text)); text = text.slice(line[0].length)) {
      try {
        renew(line[1]);
      } catch {
        // Something of the runtime that is not as it was: the process is as good as before.
      }
      tell("renewed");
    }
    return text;
  }

  /** Without a working loop the process is of no use: it ends, and the agent starts a fresh one. */
  function guard(action) {
    try {
      action();
    } catch (error) {
      broken(error);
    }
  }

  function broken(error) {
    descriptors.writeAll(2, runtime.encode(`hayfork: the JavaScript driver failed: ${error?.stack ?? error}\n`));
    runtime.reallyExit(BROKEN);
  }
};

/** `exec <id> <token> <what it has> <last-flag> <filename>`; the file name is the rest of the line. */
function parse(line) {
  const match = /^exec (\d+) ([0-9a-f]{32}) ([0-3]) ([01]) (.*)\n$/.exec(line);
  if (!match) throw new Error(`not a command: ${line.slice(0, 200)}`);
  const [, id, token, has, last, filename] = match;
  return { id, token, hasStdin: (has & 1) !== 0, hasVariables: (has & 2) !== 0, isLast: last === "1", filename };
}
