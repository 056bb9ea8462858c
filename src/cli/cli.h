/* cli/cli.h - what the commands of the program share.
 *
 * main.c finds the command and parses its options (base/options.h); cmd_*.c hold one command each.  The commands see
 * the engine through tern/tern.h alone, as any other program would.
 *
 * Rules of the house for every command:
 *   - standard output carries the product (text, one JSON object, a table) and nothing else; all talk is on stderr.
 *   - status 0 done, 1 something failed, 2 the command line is wrong, 130 ended by Ctrl-C.
 *   - a failure is one line, "tern: SENTENCE".
 * A command returns 0 or a negative TERN_E* with *err filled; main.c prints it and turns it into the status.  Wrong
 * use that only the command can see goes through tern_cli_usage. */
#ifndef TERN_CLI_H
#define TERN_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/options.h"
#include "tern/eval.h"
#include "tern/tern.h"

/* ---- commands --------------------------------------------------------------------------------------------------- */

typedef int tern_command_fn(const struct tern_args *a, tern_error *err);
tern_command_fn tern_cmd_run, tern_cmd_chat, tern_cmd_serve, tern_cmd_inspect, tern_cmd_tokenize, tern_cmd_eval_logits,
    tern_cmd_eval_ppl, tern_cmd_eval_kld, tern_cmd_bench, tern_cmd_bench_kv, tern_cmd_bench_weights, tern_cmd_doctor,
    tern_cmd_convert, tern_cmd_print, tern_cmd_models, tern_cmd_cache_ls, tern_cmd_cache_rm, tern_cmd_cache_build,
    tern_cmd_cache_verify;

/* Codes of the program's own, beside TERN_E*: the command line is wrong (status 2), the user pressed Ctrl-C (130), or
 * the failure was already reported (1). */
enum { TERN_CLI_USAGE = -100, TERN_CLI_INTERRUPTED = -101, TERN_CLI_REPORTED = -102 };

/* The status of a call that read nothing but the command line: what is wrong there is wrong use. */
int tern_cli_as_usage(int rc, tern_error *err);
/* Fills err and returns TERN_CLI_USAGE. */
int tern_cli_usage(tern_error *err, const char *fmt, ...) TERN_PRINTF(2, 3);

/* ---- doctor_measure.c -------------------------------------------------------------------------------------------- */

int tern_doctor_check(const struct tern_args *a, tern_error *err); /* options that belong together */
int tern_doctor_calibrate(tern_model *m, const struct tern_args *a, tern_error *err);
/* Divergence of the plan from a 16-bit cache on a short text, in nats per token: *kld, NaN where nothing is coded or
 * the model reads no text; *n: of how many tokens. */
int tern_doctor_kld(tern_model *m, const struct tern_args *a, double *kld, int *n, tern_error *err);
#define TERN_DOCTOR_KLD 0.2 /* more than that is no state to run in */
int tern_doctor_fit(const struct tern_args *a, tern_error *err);
/* cmd_cache.c, for `tern cache ls`: this file is or will be written and can be made again. */
void tern_cache_remember(const char *path);
/* Files in that list that interrupted runs left, and their bytes. */
int tern_cache_unfinished(double *bytes);

/* ---- foreign.c --------------------------------------------------------------------------------------------------- */

/* Options out of the file that --config names, in front of those of the command line.  TERN_CLI_USAGE names file and
 * line. */
int tern_config_options(const struct tern_command *c, int *argc, char ***argv, tern_error *err);
/* The command line of c with what other engines call things in this program's words; TERN_CLI_USAGE names the nearest
 * thing to what is not here.  The new array lives until the next call. */
int tern_foreign_options(const struct tern_command *c, int *argc, char ***argv, tern_error *err);

/* ---- signals.c --------------------------------------------------------------------------------------------------- */

/* From here on the first Ctrl-C cancels what e is doing and the second one ends the process; NULL: Ctrl-C kills again.
 * Each call also forgets an earlier Ctrl-C. */
void tern_signals_watch(tern_engine *e);
/* From here on a Ctrl-C is only remembered: for a program that waits for the user between replies. */
void tern_signals_hold(void);
bool tern_signals_interrupted(void);

/* ---- setup.c ----------------------------------------------------------------------------------------------------- */

/* The plan of new sequences; those of an engine that codes from so many tokens on (--quantized-kv-start) begin in the
 * plan `raw` and have it then. */
struct tern_start {
    int plan, from, raw; /* from 0: at once */
};
/* A new sequence, or one that was loaded and may still be in 16 bits. */
int tern_start_new(tern_seq **out, tern_engine *e, const struct tern_start *s, tern_error *err);
int tern_start_loaded(tern_seq *seq, tern_engine *e, const struct tern_start *s, tern_error *err);

struct tern_setup {
    tern_model *model, *draft; /* draft NULL: no model guesses */
    tern_engine *engine;
    struct tern_start start;
    double load_s;
    size_t kv_bytes; /* tern_setup_engine: limit of the engine's KV memory; 0: none */
    /* As in tern_model_params, for the model and the one that guesses; NULL: nobody is asked. */
    int (*before_weights)(void *user, size_t bytes, tern_error *err);
    int (*on_progress)(void *user, int done, int total);
    void (*no_weights)(void *user, size_t bytes, bool draft); /* what was asked for is not taken: the device refuses */
    void *user;                                               /* of all */
    size_t asked[2];     /* of before_weights: for the model, for the one that guesses */
    char device[64];     /* that the model was opened on, or is being */
    bool no_draft_model; /* leaves --draft FILE out */
};
/* The file that a plan is read from must not be written by this run. */
int tern_setup_guard_plan(const char *spec, tern_error *err);
/* Are --kv and its short forms a plan, on whatever model?  tern_setup_model asks it too. */
int tern_setup_check_kv(const struct tern_args *a, tern_error *err);
/* Before the first model: looks at --kv, applies --cpu-mask. */
int tern_setup_begin(const struct tern_args *a, tern_error *err);
int tern_setup_open(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err);
/* The same, and then opens the model `path`. */
int tern_setup_model(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err);
bool tern_setup_at_end(const struct tern_args *a); /* --kv-when end */
/* What the options of `a` say about an engine, all but its KV plans. */
tern_engine_params tern_setup_params(const struct tern_args *a, int ctx, int max_seqs);
/* Opens the engine by the options of `a`; layers that differ from what was asked for are reported on stderr. */
int tern_setup_engine(struct tern_setup *s, const struct tern_args *a, int ctx, int max_seqs, tern_error *err);
/* setup_model.c.  device: "auto" where nobody named a card, be it by what it shall do.  draft: the model that guesses,
 * into s->draft.  first_use: before an engine, calibrates keys, by --calibration.  open_engine: the first of s->model;
 * on the CPU where a card that nobody named refuses it.  fall_back: to the CPU, for that *err, while models alone are
 * open. */
const char *tern_setup_device(const struct tern_args *a);
bool tern_setup_on_card(const struct tern_args *a); /* cuda, cuda:N */
int tern_setup_draft(struct tern_setup *s, const struct tern_args *a, const char *path, tern_error *err);
int tern_setup_first_use(struct tern_setup *s, const struct tern_args *a, tern_error *err);
int tern_setup_open_engine(tern_engine **out, struct tern_setup *s, const struct tern_args *a, tern_engine_params *p,
                           tern_error *err);
int tern_setup_fall_back(struct tern_setup *s, const struct tern_args *a, const tern_engine_params *p, tern_error *err);
/* Tokens per chunk of a text: the option's value, its default being less for models with a smaller context. */
int tern_chunk_ctx(const struct tern_setup *s, const struct tern_arg *option);
#define TERN_CLI_MAX_TEXT ((size_t)1 << 30) /* bytes of a text */
/* tern_buf_read_file of a text, - for standard input, that this run must not replace then; UTF-16 is refused. */
int tern_setup_read(struct tern_buf *out, const char *path, size_t max_bytes, tern_error *err);
void tern_setup_clear(struct tern_setup *s);

/* Bytes or tokens as text: 128K, 8G, 512M or a plain number, min to max; steps of 1024.  `option` is for messages. */
int tern_setup_size(const char *option, const char *text, double min, double max, double *out, tern_error *err);

/* How a report is to be printed: --json, --csv or neither. */
enum tern_format { TERN_FORMAT_TABLE, TERN_FORMAT_JSON, TERN_FORMAT_CSV };
int tern_setup_format(enum tern_format *out, const struct tern_args *a, tern_error *err);

#define TERN_CLI_MAX_PLANS 16
/* The plans that an option lists.  "f16,l4" is two plans, "k=l4,v=l3" is one: a comma separates plans only where no '='
 * makes it part of one. */
struct tern_plan_list {
    char *spec[TERN_CLI_MAX_PLANS]; /* owned */
    int n;
};
int tern_setup_plans(struct tern_plan_list *out, const struct tern_arg *option, tern_error *err);
void tern_plan_list_clear(struct tern_plan_list *l);

/* The plan that was asked for: --kv, or the default of the model's device; m NULL: a text that can be checked. */
const char *tern_setup_kv(const struct tern_args *a, const tern_model *m);

/* Fills sampler parameters from the options.  *bias owns the two arrays. */
struct tern_bias {
    int32_t *ids;
    float *values;
};
int tern_setup_sampler(tern_sampler_params *p, struct tern_bias *bias, const struct tern_args *a, tern_error *err);
void tern_bias_clear(struct tern_bias *b);
/* What the model recommends holds where the user said nothing; without --seed the seed is drawn.  tell: say so. */
int tern_setup_recommended(tern_sampler_params *p, const struct tern_args *a, const tern_model *m, bool tell,
                           tern_error *err);

/* tern_model_tokenize; bytes of the text that are not UTF-8 are told of, and whether the vocabulary has them. */
int tern_setup_tokenize(const tern_model *m, const struct tern_buf *text, unsigned flags, const char *what,
                        tern_tokens *out, tern_error *err);
/* The same without tokenizing. */
void tern_setup_check_text(const tern_model *m, const struct tern_buf *text, const char *what);

/* The ids of --stop-token; *out is the caller's, and p borrows it. */
int tern_setup_stop_tokens(tern_generate_params *p, tern_tokens *out, const struct tern_args *a, const tern_model *m,
                           tern_error *err);
/* --stop texts, none of them empty. */
int tern_setup_stop(tern_generate_params *p, const struct tern_args *a, tern_error *err);

/* Appends the integers of a text, separated by one comma or blanks, to out.  `what` names the source in messages. */
int tern_ids_read(tern_tokens *out, const char *text, size_t n, const char *what, tern_error *err);

/* ---- output.c ---------------------------------------------------------------------------------------------------- */

/* Writes to standard output.  After a failure (disk full, reader gone) all further output is dropped and these return
 * TERN_EIO, or TERN_CLI_REPORTED when the reader has simply gone away. */
int tern_out_write(const char *text, size_t n, tern_error *err);
int tern_out_printf(tern_error *err, const char *fmt, ...) TERN_PRINTF(2, 3);
int tern_out_flush(tern_error *err);

/* One line on stderr, "tern: ..."; or, once it is said where, there, without that beginning. */
void tern_note(const char *fmt, ...) TERN_PRINTF(1, 2);
void tern_note_through(void (*to)(void *user, const char *line), void *user);

/* Text from a file made safe to show: control characters and malformed UTF-8 become '?'.  View into a ring of four
 * buffers; long text is cut. */
const char *tern_shown(const char *text);
/* Length of the well-formed UTF-8 character at p (p < end), 0 when there is none. */
size_t tern_utf8_length(const char *p, const char *end);

/* A JSON string of any bytes: malformed UTF-8 becomes U+FFFD.  NULL text gives null. */
json_t *tern_json_text(const char *text);
/* {"median", "min", "max"} in units of `unit`. */
json_t *tern_json_spread(const tern_spread *s, double unit);
/* Prints one object (whose reference it takes) and a newline to standard output. */
int tern_json_print(json_t *object, tern_error *err);

/* "1.5 GiB" in a ring of four buffers. */
const char *tern_size_text(double bytes);
/* Progress bar on stderr for calls that take long; silent unless stderr is a terminal. */
struct tern_progress {
    const char *what; /* "prompt" */
    double start;     /* of the first call; zero-initialise */
    bool shown;
};
int tern_progress_show(void *progress, int done, int total); /* a tern_progress_fn; stops the call after Ctrl-C */
void tern_progress_end(struct tern_progress *p);             /* wipes the bar */
int tern_progress_result(struct tern_progress *p, int rc);   /* and turns the call's status into the command's */

/* ---- report.c ---------------------------------------------------------------------------------------------------- */

/* Sums over the layers of a plan, in bytes per token. */
void tern_plan_bytes(const tern_kv_plan *p, double *bytes, double *f16_bytes);
/* Most bytes of a sequence's recurrent states, those that are kept among them. */
double tern_plan_states(const tern_kv_plan *p);
/* "KV 51 KiB, 48 KiB in 16 bits (3.7x less at 8192 tokens)": now, and a sequence of this plan at the full context, from
 * the allocator.  Static buffer. */
const char *tern_kv_use_text(const tern_engine *e, int plan);
/* What the plan has to say, a stderr line each. */
void tern_plan_notes(const tern_kv_plan *p);
/* The same, and the layers that differ from what was asked for, on one stderr line; nothing when none does. */
void tern_plan_exceptions(const tern_kv_plan *p);
/* One line per run of equal layers, for people. */
int tern_plan_print(const tern_kv_plan *p, FILE *to, tern_error *err);
/* A plan in a report (docs/json.md, "kv"); with all its layers. */
json_t *tern_report_kv(const tern_kv_plan *p, bool at_end);
json_t *tern_report_kv_layers(const tern_kv_plan *p);
/* Machine, model and plans on stderr, for --verbose. */
void tern_setup_print(const struct tern_setup *s);
/* What the user should know about the file of packed weights, on one stderr line. */
void tern_packed_note(const tern_model *m);
void tern_experts_note(const tern_model *m); /* what --experts-resident cost, the same way; or nothing */
json_t *tern_experts_json(const tern_expert_stats *before, const tern_expert_stats *after); /* limit_bytes not 0 */
/* What every JSON report begins with: command, version, machine (threads 0: nothing ran), and the model, or none. */
json_t *tern_report_json(const char *command, const tern_model *m, int threads);
/* Prints the report with the fields of `own` and the peak of memory added; takes both. */
int tern_report_print(json_t *report, json_t *own, tern_error *err);
/* The columns that end every line of comma-separated values: ",version,cpu,isa" and their values. */
#define TERN_CSV_MACHINE ",version,cpu,isa"
int tern_machine_csv(tern_error *err);
const char *tern_sampling_text(const tern_sampler_params *p); /* "temperature 0.6, top-k 20", in a static buffer */
json_t *tern_sampling_json(const tern_sampler_params *p);
const char *tern_csv_text(const char *text); /* between quotes, view into a ring of four buffers; long text is cut */

#endif
