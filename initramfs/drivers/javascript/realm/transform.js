/*
 * From the text of one execution (JavaScript by now) to scripts that can be run one after another in one global object.
 *
 * The text is parsed, and only these places of it are edited, always within their line, so that line numbers hold:
 *
 *   const a = 1        !   (a = 1)           a top-level declaration becomes an assignment to a variable that was made
 *   let b              !  (b = void 0)       before, so it may be declared again, and older functions see the new value
 *   class C {}         C = class C {};       (`!` makes it an expression statement, also after a line without semicolon)
 *   import x from "y"  (blanks)              the driver imports before the script starts and defines the names
 *   export const d     (blanks) const d      there is no importer
 *   import.meta        $importMeta           a name of the driver's that does not occur in the text
 *   a = 2              $hayfork… = 2         an assignment to a constant; see constants.js
 *
 * Everything else, strings, templates, comments and function bodies in particular, stays as it is. `var` and functions at
 * top level need no edit: in a script they are variables of the global object and functions are hoisted.
 *
 * A script cannot await at top level, so such a text is wrapped in an async arrow function ("wrapped" below). Then the
 * `var`s of the text become assignments too, the last expression becomes `return (…)`, and the function declarations
 * move to a script of their own which is the same text with everything else blanked: positions stay right and functions
 * stay hoisted and global.
 *
 * A declaration of a name that the runtime's global object has itself (`const crypto = require("crypto")`) must not
 * replace what libraries find there. Such names live in an object of the driver's, the shadow scope; a text that
 * mentions one of them is wrapped in `with (shadow scope)`. `with` makes names slow, so other texts are spared it.
 */

"use strict";

const { findAssignmentsToConstants } = require("./constants.js");

const OPTIONS = {
  ecmaVersion: "latest",
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
  locations: true,
};

/** Parses; throws acorn's SyntaxError. Returns the tree and how often each identifier occurs. */
exports.parse = function (acorn, text) {
  const attempt = (sourceType) => {
    const names = new Map();
    const onToken = (token) => {
      if (token.type === acorn.tokTypes.name) names.set(token.value, (names.get(token.value) ?? 0) + 1);
    };
    return { program: acorn.parse(text, { ...OPTIONS, sourceType, onToken }), names };
  };
  try {
    return attempt("script");
  } catch (error) {
    // A script cannot have `using` at top level, but such a text will be wrapped in a function.
    if (/^using /i.test(error.message)) return attempt("module");
    throw error;
  }
};

/**
 * @param text     what was parsed
 * @param parsed   the result of `parse`
 * @param scope    { isGlobal(name), isShadowed(name), isConstant(name), key, readOnly }: see bindings.js
 */
exports.transform = function (text, parsed, scope) {
  const plan = new Plan(text, parsed, scope);
  return plan.make();
};

function Plan(text, { program, names }, scope) {
  this.text = text;
  this.program = program;
  this.names = names;
  this.scope = scope;
  this.edits = [];
  this.imports = [];
  /** name → how it was declared: "const"; "let" for all else that needs the variable made beforehand; "var"; "function" */
  this.declared = new Map();
  this.functions = [];
}

Plan.prototype.make = function () {
  this.survey();
  const shadows = [...this.declared.keys()].filter((name) => this.scope.isGlobal(name));
  const inShadow = shadows.length > 0 || this.meta !== null || [...this.names.keys()].some((name) => this.scope.isShadowed(name));
  this.wrapped = this.isAsync || inShadow;
  for (const statement of this.program.body) this.statement(statement);
  if (this.wrapped) this.editVars(this.program.body);
  const value = this.lastExpression();

  let head = "";
  let tail = "";
  if (this.wrapped) {
    if (value) {
      this.insert(value.start, "return (", true);
      this.insert(this.endOf(value), ")");
    }
    head = `${inShadow ? `with (this.${this.scope.key}) ` : ""}(${this.isAsync ? "async " : ""}() => {`;
    tail = "\n})()";
    if (this.text.startsWith("#!")) this.replace(0, 2, "//");
  }
  const main = applyEdits(this.text, this.edits, head, tail);
  return {
    code: main.code,
    columns: main.columns,
    hoisted: this.wrapped && this.functions.length > 0 ? this.hoisted(inShadow) : null,
    declared: [...this.declared],
    imports: this.imports,
    meta: this.meta,
    wrapped: this.wrapped,
    inShadow,
    /** Is that imported name mentioned anywhere but in its import statement? */
    isUsed: (name) => this.names.get(name) > 1,
    hasValue: value !== null,
  };
};

/** Looks at everything once: is there an `await` of the top level, an `import.meta`? */
Plan.prototype.survey = function () {
  this.isAsync = false;
  let hasMeta = false;
  const look = (node, inFunction) => {
    if (node.type === "MetaProperty" && node.meta.name === "import") hasMeta = true;
    if (!inFunction) {
      const awaits = node.type === "AwaitExpression" || (node.type === "ForOfStatement" && node.await);
      if (awaits || node.kind === "await using") this.isAsync = true;
      // `using` of the top level ends with the execution, so it needs a function around it.
      if (node.kind === "using" && this.program.body.includes(node)) this.isAsync = true;
    }
    const inner = inFunction || isFunction(node);
    forEachChild(node, (child) => look(child, inner));
  };
  look(this.program, false);
  this.meta = null;
  if (hasMeta) {
    this.meta = "$importMeta";
    while (this.names.has(this.meta)) this.meta += "$";
    const rename = (node) => {
      if (node.type === "MetaProperty" && node.meta.name === "import") this.replace(node.start, node.end, this.meta);
      else forEachChild(node, rename);
    };
    rename(this.program);
  }
  for (const statement of this.program.body) this.surveyDeclaration(statement);
  this.surveyVars(this.program.body);
  const isConstant = (name) => (this.declared.has(name) ? this.declared.get(name) === "const" : this.scope.isConstant(name));
  findAssignmentsToConstants(this.program, isConstant, ({ name, start, end }, isShorthand) => {
    const text = isShorthand ? `${name}: ${this.scope.readOnly}` : this.scope.readOnly;
    this.edits.push({ start, end, text, isInner: true });
  });
};

Plan.prototype.surveyDeclaration = function (statement) {
  const declaration = exported(statement);
  if (declaration.type === "VariableDeclaration") {
    if (declaration.kind !== "let" && declaration.kind !== "const") return;
    for (const one of declaration.declarations) namesOf(one.id, (name) => this.declared.set(name, declaration.kind));
  } else if (declaration.type === "ClassDeclaration" && declaration.id) {
    this.declared.set(declaration.id.name, "let");
  } else if (declaration.type === "FunctionDeclaration" && declaration.id) {
    this.declared.set(declaration.id.name, "function");
  } else if (declaration.type === "ImportDeclaration") {
    for (const specifier of declaration.specifiers) this.declared.set(specifier.local.name, "let");
  }
};

/** `var`s belong to the whole text, wherever they stand outside functions. */
Plan.prototype.surveyVars = function (nodes) {
  const look = (node) => {
    if (isFunction(node) || node.type === "StaticBlock") return;
    if (node.type === "VariableDeclaration" && node.kind === "var") {
      for (const one of node.declarations) {
        namesOf(one.id, (name) => {
          if (!this.declared.has(name)) this.declared.set(name, "var");
        });
      }
    }
    forEachChild(node, look);
  };
  nodes.forEach(look);
};

/** The edits of one statement of the top level. */
Plan.prototype.statement = function (statement) {
  switch (statement.type) {
    case "ImportDeclaration":
      this.import(statement);
      this.blank(statement.start, statement.end);
      return;
    case "ExportNamedDeclaration":
      if (statement.declaration) {
        this.blank(statement.start, statement.declaration.start);
        this.declaration(statement.declaration);
      } else {
        if (statement.source) this.import({ ...statement, specifiers: [] });
        this.blank(statement.start, statement.end);
      }
      return;
    case "ExportAllDeclaration":
      this.import({ ...statement, specifiers: [] });
      this.blank(statement.start, statement.end);
      return;
    case "ExportDefaultDeclaration": {
      const { declaration } = statement;
      if (declaration.id && /Declaration$/.test(declaration.type)) {
        this.blank(statement.start, declaration.start);
        this.declaration(declaration);
      } else {
        const [keywords] = /^export\s+default/.exec(this.text.slice(statement.start)) ?? [""];
        this.replace(statement.start, statement.start + keywords.length, `!${" ".repeat(12)}(`);
        this.insert(this.endOf(statement), ");");
      }
      return;
    }
    default:
      this.declaration(statement);
  }
};

Plan.prototype.declaration = function (node) {
  if (node.type === "ClassDeclaration") {
    this.insert(node.start, `${node.id.name} = `);
    this.insert(node.end, ";");
  } else if (node.type === "FunctionDeclaration") {
    this.functions.push(node);
    if (this.wrapped) this.blank(node.start, node.end);
  } else if (node.type === "VariableDeclaration" && (node.kind === "let" || node.kind === "const")) {
    this.assignments(node, true);
  }
};

/** `let a = 1, {b} = c, d` → `!  (a = 1, {b} = c, d = void 0)`, as wide as before up to the first name. */
Plan.prototype.assignments = function (node, initialise) {
  const room = node.declarations[0].start - node.start;
  this.replace(node.start, node.declarations[0].start, `!${" ".repeat(Math.max(room - 2, 0))}(`);
  for (const one of node.declarations) if (!one.init && initialise) this.insert(one.end, " = void 0");
  this.insert(node.declarations.at(-1).end, ")");
};

/** In a wrapped text a `var` would be a variable of the wrapper: turns it into an assignment. */
Plan.prototype.editVars = function (nodes) {
  const isVar = (node) => node?.type === "VariableDeclaration" && node.kind === "var";
  const look = (node) => {
    if (isFunction(node) || node.type === "StaticBlock") return;
    if (isVar(node)) this.assignments(node, false);
    const loop = node.type === "ForStatement" ? node.init : /^For(In|Of)Statement$/.test(node.type) ? node.left : null;
    if (isVar(loop)) this.blank(loop.start, loop.declarations[0].start);
    forEachChild(node, (child) => {
      if (child === loop && isVar(loop)) loop.declarations.forEach(look);
      else look(child);
    });
  };
  nodes.forEach(look);
};

Plan.prototype.import = function (node) {
  const attributes = {};
  for (const one of node.attributes ?? []) attributes[one.key.name ?? one.key.value] = one.value.value;
  const names = node.specifiers.map((specifier) => {
    const local = specifier.local.name;
    if (specifier.type === "ImportNamespaceSpecifier") return { local, imported: null };
    if (specifier.type === "ImportDefaultSpecifier") return { local, imported: "default" };
    return { local, imported: specifier.imported.name ?? specifier.imported.value };
  });
  const { line, column } = node.loc.start;
  this.imports.push({ source: node.source.value, attributes, names, line, column: column + 1 });
};

/** The statement whose value is the value of the execution, if there is one. */
Plan.prototype.lastExpression = function () {
  for (const statement of this.program.body.toReversed()) {
    if (statement.type === "ExpressionStatement") return statement;
    if (statement.type !== "EmptyStatement" && exported(statement).type !== "FunctionDeclaration") return null;
  }
  return null;
};

/**
 * The script of the function declarations of a wrapped text. In the shadow scope a declaration cannot be used (it would
 * be a variable of the block), so `function f() {}` becomes `f = function  () {};` there: the name is blanked in order
 * that `f` inside means the variable, and the engine names the function after what it is assigned to.
 */
Plan.prototype.hoisted = function (inShadow) {
  const edits = [];
  let at = 0;
  const blankTo = (end) => edits.push({ start: at, end, text: blanks(this.text, at, end) });
  const directive = this.program.body[0];
  if (directive?.directive === "use strict" && !inShadow) {
    blankTo(directive.start);
    at = directive.end;
  }
  for (const node of this.functions) {
    blankTo(node.start);
    if (inShadow) {
      edits.push({ start: node.start, end: node.start, text: `${node.id.name} = ` });
      edits.push({ start: node.id.start, end: node.id.end, text: blanks(this.text, node.id.start, node.id.end) });
      edits.push({ start: node.end, end: node.end, text: ";" });
    }
    for (const edit of this.edits) {
      if (edit.isInner && edit.start >= node.start && edit.end <= node.end) edits.push(edit);
    }
    at = node.end;
  }
  blankTo(this.text.length);
  const strict = directive?.directive === "use strict" ? '"use strict";' : "";
  const head = inShadow ? `with (this.${this.scope.key}) (() => {${strict}` : "";
  return applyEdits(this.text, edits, head, head && "\n})()").code;
};

/** Where a statement ends without its semicolon. */
Plan.prototype.endOf = function (statement) {
  return this.text[statement.end - 1] === ";" ? statement.end - 1 : statement.end;
};

Plan.prototype.insert = function (at, text, first = false) {
  this.edits.push({ start: at, end: at, text, first });
};

Plan.prototype.replace = function (start, end, text) {
  this.edits.push({ start, end, text: withLinesOf(this.text, start, end, text), isInner: text === this.meta });
};

Plan.prototype.blank = function (start, end) {
  this.edits.push({ start, end, text: blanks(this.text, start, end) });
};

/** The declaration behind an `export`, else the statement itself. */
function exported(statement) {
  const isExport = statement.type === "ExportNamedDeclaration" || statement.type === "ExportDefaultDeclaration";
  return (isExport && statement.declaration) || statement;
}

function isFunction(node) {
  return /^(FunctionDeclaration|FunctionExpression|ArrowFunctionExpression)$/.test(node.type);
}

function forEachChild(node, visit) {
  for (const key in node) {
    const child = node[key];
    if (child === null || typeof child !== "object") continue;
    if (Array.isArray(child)) {
      for (const one of child) if (one && typeof one.type === "string") visit(one);
    } else if (typeof child.type === "string") {
      visit(child);
    }
  }
}

/** The names that a binding pattern binds. */
function namesOf(pattern, take) {
  if (pattern === null) return;
  if (pattern.type === "Identifier") take(pattern.name);
  else if (pattern.type === "ObjectPattern") pattern.properties.forEach((one) => namesOf(one.value ?? one.argument, take));
  else if (pattern.type === "ArrayPattern") pattern.elements.forEach((one) => namesOf(one, take));
  else namesOf(pattern.left ?? pattern.argument, take);
}

const LINE_END = /\r\n|[\n\r\u2028\u2029]/g;

/** As many columns and lines as that part of the text, but empty. */
function blanks(text, start, end) {
  return text.slice(start, end).replace(/[^\n\r\u2028\u2029]/g, " ");
}

/** `replacement` with the line ends that the part it replaces has, so that no later line moves. */
function withLinesOf(text, start, end, replacement) {
  const ends = text.slice(start, end).match(LINE_END);
  return ends ? ends.join("") + replacement.trim() : replacement;
}

/**
 * Applies the edits and notes where columns moved.
 * @returns code, and `columns`: for each line with a shift a list of [column in the code, column in the text], from 0
 */
function applyEdits(text, edits, head, tail) {
  const sorted = edits.map((edit, order) => ({ ...edit, order }));
  sorted.sort((a, b) => a.start - b.start || a.end - b.end || Number(b.first ?? false) - Number(a.first ?? false) || a.order - b.order);
  const columns = new Map();
  let code = head;
  let line = 0;
  let codeColumn = head.length;
  let textColumn = 0;
  const note = () => {
    if (!columns.has(line)) columns.set(line, []);
    columns.get(line).push([codeColumn, textColumn]);
  };
  const advance = (part, inCode, inText) => {
    let last = 0;
    for (const match of part.matchAll(LINE_END)) {
      line += 1;
      last = match.index + match[0].length;
      codeColumn = textColumn = 0;
    }
    if (inCode) codeColumn += part.length - last;
    if (inText) textColumn += part.length - last;
  };
  if (head) note();
  let at = 0;
  for (const edit of sorted) {
    if (edit.start < at) continue; // inside of something that is blanked
    const kept = text.slice(at, edit.start);
    code += kept;
    advance(kept, true, true);
    code += edit.text;
    advance(edit.text, true, false);
    // The line ends are in both, so the text's column is that of the replaced part's last line.
    const replaced = text.slice(edit.start, edit.end);
    const lastEnd = [...replaced.matchAll(LINE_END)].at(-1);
    textColumn = lastEnd ? replaced.length - lastEnd.index - lastEnd[0].length : textColumn + replaced.length;
    if (codeColumn !== textColumn) note();
    at = edit.end;
  }
  code += text.slice(at) + tail;
  return { code, columns };
}
