/* tern print: the manual page, the bash completion and the Markdown page, all from the option table. */
#include <ctype.h>
#include <string.h>

#include "cli/cli.h"

static bool option_of(const struct tern_option *o, const struct tern_command *c)
{
    return o->kind != TERN_KIND_GROUP && (o->commands & (1u << c->id));
}

static int range_text(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    switch (o->kind) {
    case TERN_KIND_INT:
    case TERN_KIND_INTS:
        return tern_buf_addf(out, err, "%.0f to %.0f", o->min, o->max);
    case TERN_KIND_FLOAT:
        return tern_buf_addf(out, err, "%g to %g", o->min, o->max);
    default:
        return 0;
    }
}

/* "Default 256; 0 to 2147483647." or nothing. */
static int facts(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf range = {0};
    TERN_TRY(range_text(o, &range, err));
    if (o->def)
        TERN_TRY(tern_buf_addf(out, err, "Default %s", o->def));
    if (range.len)
        TERN_TRY(tern_buf_addf(out, err, "%s%s", o->def ? "; " : "From ", range.p));
    if (o->def || range.len)
        TERN_TRY(tern_buf_addc(out, '.', err));
out:
    tern_buf_clear(&range);
    return rc;
}

/* ---- manual page ------------------------------------------------------------------------------------------------- */

/* Text with everything escaped that roff would read as an instruction. */
static int roff_text(struct tern_buf *out, const char *text, tern_error *err)
{
    int rc = 0;
    bool line_start = out->len == 0 || out->p[out->len - 1] == '\n';
    for (const char *p = text; *p; p++) {
        if (line_start && (*p == '.' || *p == '\''))
            TERN_TRY(tern_buf_addf(out, err, "\\&"));
        line_start = *p == '\n';
        if (*p == '-')
            TERN_TRY(tern_buf_addf(out, err, "\\-"));
        else if (*p == '\\')
            TERN_TRY(tern_buf_addf(out, err, "\\e"));
        else if (*p == '\n')
            TERN_TRY(tern_buf_addf(out, err, "\n.PP\n"));
        else
            TERN_TRY(tern_buf_addc(out, *p, err));
    }
out:
    return rc;
}

/* Help fragments begin in lower case and have no full stop; in running text they are sentences. */
static int sentence(struct tern_buf *out, const char *text, tern_error *err)
{
    int rc = 0;
    struct tern_buf b = {0};
    TERN_TRY(tern_buf_add(&b, text, strlen(text), err));
    /* "32-bit" stays; "the prompt" becomes "The prompt". */
    b.p[0] = (char)toupper((unsigned char)b.p[0]);
    TERN_TRY(tern_buf_addc(&b, '.', err));
    TERN_TRY(tern_buf_add(out, b.p, b.len, err));
out:
    tern_buf_clear(&b);
    return rc;
}

static int man_option(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    TERN_TRY(tern_buf_addf(out, err, ".TP\n.B "));
    if (o->letter)
        TERN_TRY(tern_buf_addf(out, err, "\\-%c, ", o->letter));
    TERN_TRY(tern_buf_addf(&text, err, "--%s", o->name));
    TERN_TRY(roff_text(out, text.p, err));
    if (o->metavar) {
        TERN_TRY(tern_buf_addf(out, err, " \\fI"));
        TERN_TRY(roff_text(out, o->metavar, err));
        TERN_TRY(tern_buf_addf(out, err, "\\fP"));
    }
    TERN_TRY(tern_buf_addc(out, '\n', err));
    tern_buf_reset(&text);
    TERN_TRY(sentence(&text, o->help, err));
    TERN_TRY(tern_buf_addc(&text, ' ', err));
    TERN_TRY(facts(o, &text, err));
    if (text.p[text.len - 1] == ' ')
        text.p[--text.len] = 0;
    TERN_TRY(roff_text(out, text.p, err));
    TERN_TRY(tern_buf_addc(out, '\n', err));
out:
    tern_buf_clear(&text);
    return rc;
}

static int man_command(const struct tern_command *c, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, ".SS \"tern %s\"\n.B tern %s\n", c->name, c->name));
    TERN_TRY(roff_text(out, c->usage, err));
    TERN_TRY(tern_buf_addf(out, err, "\n.PP\n"));
    TERN_TRY(roff_text(out, c->about, err));
    TERN_TRY(tern_buf_addc(out, '\n', err));
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (option_of(&tern_options[id], c))
            TERN_TRY(man_option(&tern_options[id], out, err));
out:
    return rc;
}

static int man_schemes(struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, ".SH KV SCHEMES\n"));
    for (const char *const *s = tern_kv_schemes(); s[0]; s += 2) {
        TERN_TRY(tern_buf_addf(out, err, ".TP\n.B "));
        TERN_TRY(roff_text(out, s[0], err));
        TERN_TRY(tern_buf_addc(out, '\n', err));
        TERN_TRY(roff_text(out, s[1], err));
        TERN_TRY(tern_buf_addc(out, '\n', err));
    }
out:
    return rc;
}

static const char man_head[] =
    ".SH NAME\ntern \\- run language models with a compressed KV cache\n"
    ".SH SYNOPSIS\n.B tern\n.I COMMAND\n.RI [ options ]\n.br\n.B tern\n.I COMMAND\n.B \\-\\-help\n.br\n.B tern "
    "\\-\\-version\n"
    ".SH DESCRIPTION\n"
    "tern runs large language models from GGUF files or safetensors directories on the processor.  Their KV cache is "
    "kept in 2 to 8 bits per "
    "value and attended in place.\n.PP\n"
    "The product of a command goes to standard output: text, a table, or with\n.B \\-\\-json\none object.  "
    "Everything else goes to standard error.\n"
    ".SH COMMANDS\n";

static const char man_tail[] =
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nThe command did what it was asked to.\n"
    ".TP\n.B 1\nSomething failed; standard error has one line that says what.\n"
    ".TP\n.B 2\nThe command line is wrong.\n"
    ".TP\n.B 130\nEnded by Ctrl\\-C.\n"
    ".SH FILES\n"
    ".TP\n.I MODEL.packed\nThe model's packed weights, which later runs map.  Its size and place are told before it is "
    "written.\n"
    ".TP\n.I MODEL.ternkv\nWhat a calibration learned about the model's keys; coded KV caches use it.\n"
    ".TP\n.I ~/.cache/tern\nBoth of them, where the model's folder cannot be written, and the list for\n.BR \"tern "
    "cache "
    "ls\" .\n"
    ".TP\n.I FILE.turns.json\nThe text of a conversation that\n.B /save FILE\nwrote; FILE has its tokens and KV "
    "cache.\n"
    ".TP\n.I FILE.part\nA conversion that was interrupted and can go on.\n"
    ".PP\nNo output replaces a file of another kind, unless\n.B \\-\\-force\nis given, nor ever a file that the run "
    "reads.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B XDG_CACHE_HOME, HOME\nThe cache folder is $XDG_CACHE_HOME/tern, else $HOME/.cache/tern.\n"
    ".SH EXAMPLES\n"
    ".nf\n"
    "tern models\n"
    "tern run \\-m model.gguf \\(dqName three seabirds.\\(dq\n"
    "git diff | tern run \\-m model.gguf \\-n 500\n"
    "tern chat \\-m model.gguf \\-\\-system \\(dqBe brief.\\(dq\n"
    "tern doctor \\-m model.gguf\n"
    "tern doctor \\-\\-calibrate \\-m model.gguf\n"
    "tern doctor \\-\\-fit 32K \\-\\-in 2G \\-m model.gguf > plan.txt\n"
    "tern run \\-m model.gguf \\-f long.txt \\-\\-kv plan=plan.txt\n"
    "tern convert \\-m FOLDER \\-o model.gguf \\-\\-type q4_k\n"
    "tern cache rm \\-\\-all\n"
    "tern run \\-m model.gguf \\-p \\(dqName three seabirds.\\(dq\n"
    "tern run \\-m model.gguf \\-\\-raw \\-f story.txt \\-n 100 \\-\\-kv k=l4,v=l3 \\-\\-json\n"
    "tern inspect model.gguf \\-\\-kv l4\n"
    "tern eval kld \\-m model.gguf \\-f text.txt \\-\\-kv q8,l4,l3 \\-\\-exact\n"
    "tern bench \\-m model.gguf \\-d 0,4096 \\-\\-kv f16,l4 \\-\\-json\n"
    "tern bench \\-m model.gguf \\-d 0 \\-b 1,8 \\-t 1,2 \\-\\-csv\n"
    "tern bench kv \\-\\-preset smollm2 \\-\\-kv f16,l4,t4\n"
    "tern bench weights \\-\\-types Q4_0,Q6_K \\-\\-size 1G\n"
    ".fi\n";

static int write_man(struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, ".TH TERN 1 \"\" \"tern %s\" \"User Commands\"\n", tern_version()));
    TERN_TRY(tern_buf_add(out, man_head, sizeof man_head - 1, err));
    for (int i = 0; i < TERN_N_COMMANDS; i++)
        if (!tern_commands[i].hidden)
            TERN_TRY(man_command(&tern_commands[i], out, err));
    TERN_TRY(man_schemes(out, err));
    TERN_TRY(tern_buf_add(out, man_tail, sizeof man_tail - 1, err));
out:
    return rc;
}

/* ---- bash completion --------------------------------------------------------------------------------------------- */

/* Words of a value: those of a choice, of a metavar such as auto|use|off|FILE, or KV schemes. */
static int bash_value_words(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    const char *list = o->metavar ? o->metavar : "";
    if (strcmp(o->name, "kv") == 0) {
        for (const char *const *s = tern_kv_schemes(); s[0]; s += 2)
            TERN_TRY(tern_buf_addf(out, err, "%s%s", out->len ? " " : "", s[0]));
    } else if (strcmp(o->name, "turbo-kv-bits") == 0 || strcmp(o->name, "turbo-v-bits") == 0) {
        TERN_TRY(tern_buf_addf(out, err, "0 2 3 4 8"));
    } else if (strchr(list, '|')) {
        for (size_t n; *list; list += n + (list[n] == '|')) {
            n = strcspn(list, "|");
            if (islower((unsigned char)*list)) /* FILE is no word */
                TERN_TRY(tern_buf_addf(out, err, "%s%.*s", out->len ? " " : "", (int)n, list));
        }
    } else if (o->def && (o->kind == TERN_KIND_INT || o->kind == TERN_KIND_INTS || o->kind == TERN_KIND_FLOAT)) {
        TERN_TRY(tern_buf_addf(out, err, "%s", o->def));
    }
out:
    return rc;
}

/* What may follow an option: its words, file names, or both. */
static int bash_value(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf words = {0};
    const bool file = o->metavar && strstr(o->metavar, "FILE");
    TERN_TRY(bash_value_words(o, &words, err));
    if (o->kind == TERN_KIND_FLAG)
        goto out;
    TERN_TRY(tern_buf_addf(out, err, "        *\" --%s\"", o->name));
    if (o->letter)
        TERN_TRY(tern_buf_addf(out, err, " | *\" -%c\"", o->letter));
    if (file && !words.len)
        TERN_TRY(tern_buf_addf(out, err, ") compopt -o default; return ;;\n"));
    else
        TERN_TRY(tern_buf_addf(out, err, ") words=\"%s\"%s ;;\n", words.len ? words.p : "",
                               file ? "; compopt -o default" : ""));
out:
    tern_buf_clear(&words);
    return rc;
}

static int bash_command(const struct tern_command *c, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, "    \"%s\"*)\n        words=\"", c->name));
    bool first = true;
    for (int id = 0; id < TERN_N_OPTIONS; id++) {
        const struct tern_option *o = &tern_options[id];
        if (!option_of(o, c))
            continue;
        TERN_TRY(tern_buf_addf(out, err, "%s--%s", first ? "" : " ", o->name));
        first = false;
    }
    TERN_TRY(tern_buf_addf(out, err, "\"\n        case \"%s $prev\" in\n", c->name));
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (option_of(&tern_options[id], c))
            TERN_TRY(bash_value(&tern_options[id], out, err));
    TERN_TRY(tern_buf_addf(out, err, "        esac\n        ;;\n"));
out:
    return rc;
}

/* First words of the command names, or the second words of those that begin with `first`. */
static int bash_words(struct tern_buf *out, const char *first, tern_error *err)
{
    int rc = 0;
    const char *before = ""; /* commands of one first word stand together */
    size_t n_before = 0;
    for (int i = 0; i < TERN_N_COMMANDS; i++) {
        const char *name = tern_commands[i].name, *space = strchr(name, ' ');
        size_t n = space ? (size_t)(space - name) : strlen(name);
        if (tern_commands[i].hidden)
            continue;
        if (first && space && strlen(first) == n && memcmp(first, name, n) == 0) {
            TERN_TRY(tern_buf_addf(out, err, "%s ", space + 1));
        } else if (!first && (n_before != n || memcmp(before, name, n) != 0)) {
            TERN_TRY(tern_buf_addf(out, err, "%.*s ", (int)n, name));
            before = name;
            n_before = n;
        }
    }
out:
    return rc;
}

static int write_bash(struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err,
                           "# bash completion for tern, made by 'tern print bash'\n"
                           "_tern() {\n"
                           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
                           "    COMPREPLY=()\n"
                           "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                           "        COMPREPLY=($(compgen -W \""));
    TERN_TRY(bash_words(out, NULL, err));
    TERN_TRY(tern_buf_addf(out, err,
                           "help --help --version\" -- \"$cur\"))\n"
                           "        return\n"
                           "    fi\n"));
    for (const char *const *family = (const char *const[]){"eval", "cache", NULL}; *family; family++) {
        TERN_TRY(tern_buf_addf(out, err,
                               "    if [ \"$COMP_CWORD\" -eq 2 ] && [ \"$prev\" = %s ]; then\n"
                               "        COMPREPLY=($(compgen -W \"",
                               *family));
        TERN_TRY(bash_words(out, *family, err));
        TERN_TRY(tern_buf_addf(out, err, "\" -- \"$cur\"))\n        return\n    fi\n"));
    }
    TERN_TRY(tern_buf_addf(out, err, "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n"));
    for (int words = 2; words > 0; words--) /* "bench kv" is also something that begins with "bench" */
        for (int i = 0; i < TERN_N_COMMANDS; i++)
            if (!tern_commands[i].hidden && (strchr(tern_commands[i].name, ' ') != NULL) == (words == 2))
                TERN_TRY(bash_command(&tern_commands[i], out, err));
    TERN_TRY(tern_buf_addf(out, err,
                           "    esac\n"
                           "    if [[ $cur != -* && $prev != -* ]]; then\n"
                           "        compopt -o default\n"
                           "        return\n"
                           "    fi\n"
                           "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                           "}\n"
                           "complete -o default -F _tern tern\n"));
out:
    return rc;
}

/* ---- Markdown ---------------------------------------------------------------------------------------------------- */

/* Table cells must not contain a bare '|'. */
static int cell_text(struct tern_buf *out, const char *text, tern_error *err)
{
    int rc = 0;
    for (const char *p = text; *p; p++) {
        if (*p == '|')
            TERN_TRY(tern_buf_addc(out, '\\', err));
        TERN_TRY(tern_buf_addc(out, *p, err));
    }
out:
    return rc;
}

static int markdown_option(const struct tern_option *o, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf spelling = {0};
    TERN_TRY(tern_option_spelling(o, &spelling, err));
    TERN_TRY(tern_buf_addf(out, err, "| `"));
    TERN_TRY(cell_text(out, spelling.p, err));
    TERN_TRY(tern_buf_addf(out, err, "` | %s | ", o->def ? o->def : ""));
    TERN_TRY(range_text(o, out, err));
    TERN_TRY(tern_buf_addf(out, err, " | "));
    TERN_TRY(cell_text(out, o->help, err));
    TERN_TRY(tern_buf_addf(out, err, " |\n"));
out:
    tern_buf_clear(&spelling);
    return rc;
}

static int markdown_command(const struct tern_command *c, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, "\n## tern %s\n\n`tern %s %s`\n\n", c->name, c->name, c->usage));
    for (const char *p = c->about; *p; p++)
        TERN_TRY(*p == '\n' ? tern_buf_addf(out, err, "\n\n") : tern_buf_addc(out, *p, err));
    TERN_TRY(tern_buf_addf(out, err, "\n\n| option | default | range | meaning |\n|---|---|---|---|\n"));
    for (int id = 0; id < TERN_N_OPTIONS; id++)
        if (option_of(&tern_options[id], c))
            TERN_TRY(markdown_option(&tern_options[id], out, err));
out:
    return rc;
}

static int write_markdown(struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_buf_addf(out, err, "# The command line\n\nMade by `tern print help-md` from the option table.\n"));
    for (int i = 0; i < TERN_N_COMMANDS; i++)
        if (!tern_commands[i].hidden)
            TERN_TRY(markdown_command(&tern_commands[i], out, err));
out:
    return rc;
}

int tern_cmd_print(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct tern_buf out = {0};
    const char *what = a->operands[0];
    if (strcmp(what, "man") == 0)
        TERN_TRY(write_man(&out, err));
    else if (strcmp(what, "bash") == 0)
        TERN_TRY(write_bash(&out, err));
    else if (strcmp(what, "help-md") == 0)
        TERN_TRY(write_markdown(&out, err));
    else
        TERN_TRY(tern_cli_usage(err, "print knows man, bash and help-md, not \"%.80s\"", what));
    TERN_TRY(tern_out_write(out.p, out.len, err));
out:
    tern_buf_clear(&out);
    return rc;
}
