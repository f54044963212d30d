/*
 * Assignments to constants. A top-level `const` becomes an ordinary variable (transform.js), so assigning to it would work.
 * This finds the places that do so: the identifiers that are written to, mean a top-level constant, and are not names of
 * an inner scope. They are renamed to a property whose setter throws the engine's TypeError.
 */

"use strict";

/**
 * @param program     the tree
 * @param isConstant  (name) → is that top-level name a constant?
 * @param found       called with each identifier node, and true if it is a shorthand property: `({name} = …)`
 */
exports.findAssignmentsToConstants = function (program, isConstant, found) {
  visitAll(program.body, null);

  function write(pattern, scope, isShorthand = false) {
    if (!pattern) return;
    switch (pattern.type) {
      case "Identifier":
        if (isConstant(pattern.name) && !isInner(scope, pattern.name)) found(pattern, isShorthand);
        return;
      case "ObjectPattern":
        for (const one of pattern.properties) write(one.value ?? one.argument, scope, one.shorthand === true);
        return;
      case "ArrayPattern":
        for (const one of pattern.elements) write(one, scope);
        return;
      case "AssignmentPattern":
        write(pattern.left, scope, isShorthand);
        return;
      case "RestElement":
        write(pattern.argument, scope);
    }
  }

  function visit(node, scope) {
    if (node.type === "AssignmentExpression") write(node.left, scope);
    else if (node.type === "UpdateExpression") write(node.argument, scope);
    else if ((node.type === "ForInStatement" || node.type === "ForOfStatement") && node.left.type !== "VariableDeclaration") {
      write(node.left, scope);
    }
    visitAll(Object.values(node), opens(node) ? { names: namesIn(node), outer: scope } : scope);
  }

  function visitAll(children, scope) {
    for (const child of children) {
      if (Array.isArray(child)) visitAll(child, scope);
      else if (child && typeof child.type === "string") visit(child, scope);
    }
  }
};

function isInner(scope, name) {
  for (let one = scope; one; one = one.outer) if (one.names.has(name)) return true;
  return false;
}

const SCOPES = /^(?:Function|ArrowFunction|Class|Block|StaticBlock|For|ForIn|ForOf|Switch|CatchClause)/;

function opens(node) {
  return SCOPES.test(node.type);
}

/** The names that a node's own scope binds. `var`s and functions of nested blocks are counted to every scope on their way. */
function namesIn(node) {
  const names = new Set();
  const bind = (pattern) => {
    if (!pattern) return;
    if (pattern.type === "Identifier") names.add(pattern.name);
    else if (pattern.type === "ObjectPattern") pattern.properties.forEach((one) => bind(one.value ?? one.argument));
    else if (pattern.type === "ArrayPattern") pattern.elements.forEach(bind);
    else bind(pattern.left ?? pattern.argument);
  };
  if (/Function/.test(node.type)) {
    node.params.forEach(bind);
    if (node.type === "FunctionExpression") bind(node.id);
    names.add("arguments");
  } else if (node.type === "ClassExpression") {
    bind(node.id);
  } else if (node.type === "CatchClause") {
    bind(node.param);
  }
  const statements = [node.body?.body, node.body, node.init, node.left, ...(node.cases ?? []).map((one) => one.consequent)];
  for (const one of statements.flat()) {
    if (one?.type === "VariableDeclaration") one.declarations.forEach((declarator) => bind(declarator.id));
    else if (one?.type === "FunctionDeclaration" || one?.type === "ClassDeclaration") bind(one.id);
  }
  if (/Function/.test(node.type) && node.body.type === "BlockStatement") bindVars(node.body, bind);
  return names;
}

/** The `var`s of a function, wherever they stand in it. */
function bindVars(node, bind) {
  if (node.type === "VariableDeclaration" && node.kind === "var") node.declarations.forEach((one) => bind(one.id));
  for (const child of Object.values(node).flat()) {
    if (child && typeof child.type === "string" && !/Function|StaticBlock/.test(child.type)) bindVars(child, bind);
  }
}
