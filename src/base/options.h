/* base/options.h - the one table of commands and options, and the parser that reads command lines by it.
 *
 * options.def holds a row per command and a row per option.  Everything that speaks about options is made from these
 * rows: the parser and its range checks, --help of every command, the man page, the bash completion, the Markdown page.
 * An option that is not in the table does not exist.
 *
 * A row belongs to a set of commands (bit mask), so the same letter may mean different things in different commands
 * (-n of `run` counts a reply, -n of `bench` counts steps): these are different rows with different ids.
 *
 * Values live in struct tern_args, indexed by option id.  Strings are views into argv; lists are owned by the struct.
 * Thread: getopt is not reentrant, so only one thread may parse. */
#ifndef TERN_BASE_OPTIONS_H
#define TERN_BASE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

enum tern_command_id {
#define TERN_COMMAND(id, ...) TERN_CMD_##id,
#include "base/options.def"
    TERN_N_COMMANDS
};

/* One bit per command, for the `commands` column. */
enum {
#define TERN_COMMAND(id, ...) TERN_ON_##id = 1 << TERN_CMD_##id,
#include "base/options.def"
};

enum tern_option_id {
#define TERN_GROUP(id, title) TERN_OPT_GROUP_##id,
#define TERN_OPTION(id, ...)  TERN_OPT_##id,
#include "base/options.def"
    TERN_N_OPTIONS
};

enum tern_option_kind {
    TERN_KIND_GROUP,  /* a heading of the help text, no option */
    TERN_KIND_FLAG,   /* takes no value */
    TERN_KIND_INT,    /* one integer in [min, max] */
    TERN_KIND_INTS,   /* comma-separated integers, each in [min, max] */
    TERN_KIND_FLOAT,  /* one finite number in [min, max] */
    TERN_KIND_STRING, /* any text; the last one given counts */
    TERN_KIND_ONCE,   /* any text that names what is worked on: a second one would be forgotten, so it is refused */
    TERN_KIND_LIST,   /* any text, as often as wanted: all count */
    TERN_KIND_CHOICE, /* one of the words of the metavar, "strict|report" */
};

#define TERN_UP_TO(n) (-(n))

struct tern_command {
    enum tern_command_id id;
    const char *name;    /* "run", "eval logits" */
    const char *usage;   /* what follows "tern NAME" in the synopsis */
    int n_operands;      /* operands (not options) that it wants, exactly; TERN_UP_TO: so many or fewer */
    bool hidden;         /* not in the list of commands */
    const char *summary; /* one line, lower case, no full stop */
    const char *about;   /* paragraphs, separated by a newline */
};
extern const struct tern_command tern_commands[TERN_N_COMMANDS];

struct tern_option {
    const char *name; /* long name without dashes; the title of a group */
    char letter;      /* short name or 0 */
    enum tern_option_kind kind;
    const char *def; /* text of the default, NULL when there is none */
    double min, max;
    unsigned commands; /* TERN_ON_* bits that know the option */
    unsigned required; /* those that do not work without it */
    const char *metavar;
    const char *help; /* sentence fragment */
};
extern const struct tern_option tern_options[TERN_N_OPTIONS];

#define TERN_OPT_MAX_INTS 64

struct tern_arg {
    int n;           /* times given on the command line; 0: the default applies */
    int64_t i;       /* INT */
    double f;        /* FLOAT */
    const char *s;   /* STRING and CHOICE; NULL when neither given nor defaulted */
    int64_t *ints;   /* INTS [n_items], owned */
    const char **ss; /* LIST [n_items], owned array of views */
    int n_items;
};

struct tern_args {
    const struct tern_command *command;
    struct tern_arg v[TERN_N_OPTIONS];
    char **operands; /* view into argv */
    int n_operands;
};

/* The command that argv[1..] names and how many words that took (1 or 2); NULL when there is none. */
const struct tern_command *tern_command_find(int argc, char **argv, int *words);

/* Reads argv[1..argc) (argv[0] is ignored) and may reorder it: options may stand behind operands.  TERN_EINVAL with a
 * sentence naming the option and what it allows.  Missing required options and operands are no error when --help was
 * given.  On failure *a holds nothing. */
int tern_args_parse(struct tern_args *a, const struct tern_command *c, int argc, char **argv, tern_error *err);
void tern_args_clear(struct tern_args *a);

/* Text of --help. */
int tern_command_help(const struct tern_command *c, struct tern_buf *out, tern_error *err);

/* "-m, --model FILE", the way help and the man page write an option. */
int tern_option_spelling(const struct tern_option *o, struct tern_buf *out, tern_error *err);

/* Appends `text` broken at `width` columns; lines after the first start with `indent` spaces, and the first is taken
 * to begin at column `column`. */
int tern_text_wrap(struct tern_buf *out, const char *text, int column, int indent, int width, tern_error *err);

#endif
