/* text/jinja/jinja.h - the inside of the chat template engine; only this folder includes it.
 *
 * Mental model: text -> tokens (lex.c) -> tree (parse.c, stmt.c) -> a walk over the tree that writes
 * text (eval.c for expressions, exec.c for statements) with Python's rules for values.
 *
 * Ownership: the tree lives in the template's arena and never changes after the parse, so any number of renders may
 * share it.  Everything a render makes lives in that render's own arena and dies with it; that is why functions here
 * own nothing and return early on failure (JTRY) where the rest of the tree would go to an `out:` label.
 *
 * Marks: each string knows which of its bytes came from a message.  A uniform string has `m` NULL and one flag `user`;
 * a mixed one has one mark byte per text byte.  Every operation that copies bytes copies their marks.
 *
 * Limits: templates arrive inside untrusted model files.  Each tree node evaluated costs one step and bulk work costs
 * one step per some bytes or items; steps, nesting, memory and output are all bounded (TERN_ELIMIT).  The deepest
 * nesting that these limits allow takes less than 1 MiB of C stack. */
#ifndef TERN_TEXT_JINJA_JINJA_H
#define TERN_TEXT_JINJA_JINJA_H

#include "text/jinja/ops.h"

#endif
