/*
 * process.stdin, process.stdout and process.stderr.
 *
 * The two that write do so at once and completely, as Node's do for pipes. Bun's own are bound to the file that was behind
 * the descriptor when they were first used, and write later: output would end up in the wrong execution.
 */

"use strict";

const { Readable, Writable } = require("node:stream");

let hooks;

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
    hooks.read(this.#copy, buffer, 0, size, null, (error, count) => {
      if (error || count === 0) {
        this.#release();
        this.push(null);
      } else {
        this.push(buffer.subarray(0, count));
      }
    });
  }

  #release() {
    if (this.#copy >= 0) hooks.closeSync(this.#copy);
    this.#copy = -1;
    this.#over = true;
  }

  static {
    release = (stream) => stream.#release();
  }
}

function open(name, given) {
  hooks = given;
  return name === "stdin" ? new ReadStream() : new WriteStream(name === "stdout" ? 1 : 2);
}

module.exports = { open, release: (stream) => release(stream) };
