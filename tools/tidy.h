/* For tools/tidy alone, which includes it in front of every file: the value of functions that report a failure.
 *
 * They are defined elsewhere, so the analyzer would have to assume that they might return 0, and that the caller goes
 * on with what it failed to get.  A TIDY_HERE_ macro stands for "defined in this file". */
#ifndef TERN_TOOLS_TIDY_H
#define TERN_TOOLS_TIDY_H

#include "base/err.h"

#ifdef TIDY_JINJA
#include "text/jinja/jinja.h"
#ifndef TIDY_HERE_tern_jrun_fail
#define tern_jrun_fail(r, code, ...) ((void)tern_jrun_fail(r, code, __VA_ARGS__), (code))
#endif
#ifndef TIDY_HERE_tern_jparse_fail
#define tern_jparse_fail(p, code, ...) ((void)tern_jparse_fail(p, code, __VA_ARGS__), (code))
#endif
#endif

#ifdef TIDY_FILE
#include "file/file_impl.h"
#ifndef TIDY_HERE_tern_cursor_fail
#define tern_cursor_fail(c, at, code, ...) ((void)tern_cursor_fail(c, at, code, __VA_ARGS__), (code))
#endif
#endif

#ifndef TIDY_HERE_tern_err_set
#define tern_err_set(err, code, ...) ((void)tern_err_set(err, code, __VA_ARGS__), (code))
#endif

#endif
