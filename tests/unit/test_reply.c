/* Replies taken apart: recorded texts of every family in pieces of every size, what only looks like a call, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include "base/rng.h"
#include "reply_transcript.h"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}}}}}, "
    "{\"name\": \"note\", \"parameters\": {\"properties\": {\"text\": {\"type\": \"string\"}}}}]";

struct example {
    const char *calls, *reasoning, *text, *expected;
};

static const struct example examples[] = {
    /* JSON between marks */
    {"hermes", "think",
     "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     "{Let me look.\n}<weather {\"city\": \"Oslo\"}>"},
    {"hermes", "think",
     "<think>\nTwo cities.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", "
     "\"days\": 2}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": "
     "\\\"Rom\\\"}\"}\n</tool_call>\n",
     "(Two cities.\n)<weather {\"city\": \"Oslo\", \"days\": 2}><weather {\"city\": \"Rom\"}>"},
    {"hermes", "think",
     "<tool_call>{\"name\": \"note\", \"arguments\": {\"text\": \"</tool_call> \\\" é\"}}</tool_call>\n so",
     "<note {\"text\": \"</tool_call> \\\" é\"}>{\n so}"},
    {"hermes", "think",
     "<tool_call>{\"name\": \"note\", \"arguments\": {\"n\": 123456789012345678901234567890.50}}</tool_call>",
     "<note {\"n\": 123456789012345678901234567890.50}>"},
    {"hermes", "off", "<think>x</think>", "{<think>x</think>}"},
    {"hermes", "think", "a < b, <tool, <tool_cal, </think>, <thin", "{a < b, <tool, <tool_cal, </think>, <thin}"},
    {"hermes", "think", "<think>never ends <tool_call>", "(never ends <tool_call>)"},
    {"hermes", "think", "<tool_call>{\"name\": \"note\", \"arguments\": {}}", "<note {}>"}, /* ended by its end token */
    {"hermes", "think", "<tool_call>{\"name\": \"note\", \"argum",
     "!the reply ends inside a call!{<tool_call>{\"name\": \"note\", \"argum}"},
    {"hermes", "think",
     "<tool_call>{\"name\": \"a\", \"arguments\": {\"b\": \"c\n}}</tool_call><tool_call>{\"name\": "
     "\"a\", \"arguments\": {}}</tool_call>",
     "!a call is no JSON object!{<tool_call>{\"name\": \"a\", \"arguments\": {\"b\": \"c\n}}</tool_call>}<a {}>"},
    {"hermes", "think", "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>",
     "!the arguments of a call are no JSON object!{<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>}"},
    {"hermes", "think", "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
     "!a call has no name!{<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>}"},
    {"hermes", "think", "<tool_call>{\"arguments\": {\"name\": \"x\"}}</tool_call>",
     "!a call has no name!{<tool_call>{\"arguments\": {\"name\": \"x\"}}</tool_call>}"},
    {"hermes", "think", "<tool_call></tool_call>", "!a call is no JSON object!{<tool_call></tool_call>}"},
    {"off", "think", "<tool_call>{}</tool_call>", "{<tool_call>{}</tool_call>}"},
    /* marks for every parameter */
    {"xml", "think",
     "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</"
     "function>\n"
     "</tool_call>",
     "<weather {\"city\": \"12\", \"days\": 3}>"},
    {"xml", "think",
     "<tool_call>\n<function=unknown>\n<parameter=a>\ntwo\nlines \"q\"\n</parameter>\n<parameter=b>\n[1, {\"c\": "
     "null}]\n</parameter>\n</function>\n</tool_call>",
     "<unknown {\"a\": \"two\\nlines \\\"q\\\"\", \"b\": [1, {\"c\": null}]}>"},
    {"xml", "think", "<tool_call><function=now></function></tool_call>", "<now {}>"},
    {"xml", "think", "<tool_call><function=f><parameter=a>1</function></tool_call>",
     "!a parameter of a call has no end!{<tool_call><function=f><parameter=a>1</function></tool_call>}"},
    {"xml", "think",
     "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
     "!the arguments of a call are no JSON "
     "object!{<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>}"},
    /* what lacks its closing mark, or a part of it, at the end of the reply */
    {"xml", "think", "<tool_call><function=f></function>", "<f {}>"},
    {"xml", "think", "a<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_",
     "{a}<f {\"a\": 1}>"},
    {"xml", "think", "<tool_call><function=f><parameter=a>1</parameter></functio",
     "!the reply ends inside a call!{<tool_call><function=f><parameter=a>1</parameter></functio}"},
    {"seed", "off", "<seed:tool_call><function=f></function>\n", "<f {}>"},
    {"gemma4", "off", "<|tool_call>call:f{a:1}", "<f {\"a\": 1}>"},
    {"gemma4", "off", "<|tool_call>call:f{a:1", "!the reply ends inside a call!{<|tool_call>call:f{a:1}"},
    {"lfm2", "off", "<|tool_call_start|>[a(x=1)]<|tool_", "<a {\"x\": 1}>"},
    {"hermes", "think", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_ca", "<f {}>"},
    {"glm", "think", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>",
     "!the reply ends inside a call!{<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>}"},
    {"dsml", "think",
     "<think>Which?</think>Let me see.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n"
     "<｜DSML｜parameter name=\"city\" string=\"true\">New \"York\" & <b></｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"days\" string=\"false\">[3, {\"a\": null}]</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "(Which?){Let me see.}<weather {\"city\": \"New \\\"York\\\" & <b>\", \"days\": [3, {\"a\": null}]}><now {}>"},
    {"dsml", "think",
     "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"false\">b</｜DSML｜parameter></｜DSML｜invoke>",
     "!a parameter of a call is no JSON!{<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
     "string=\"false\">b</｜DSML｜parameter></｜DSML｜invoke>}"},
    {"dsml", "think",
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">1"
     "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "<f {\"a\": \"1\"}>"},
    {"dsml", "think",
     "a\n\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "{a\n}<f {}>"},
    {"dsml", "think", "a\n\nb\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\"></｜DSML｜invoke>", "{a\n\nb\n}<f {}>"},
    {"dsml", "think",
     "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">1</｜DSML｜parameter>"
     "<｜DSML｜parameter name=\"a\" string=\"true\">2</｜DSML｜parameter></｜DSML｜invoke>",
     "!the arguments of a call are no JSON object!{<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
     "string=\"true\">1</｜DSML｜parameter><｜DSML｜parameter name=\"a\" "
     "string=\"true\">2</｜DSML｜parameter></｜DSML｜invoke>}"},
    {"dsml", "think",
     "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"maybe\">1</｜DSML｜parameter></｜DSML｜invoke>",
     "!a parameter of a call is neither a string nor none!{<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
     "string=\"maybe\">1</｜DSML｜parameter></｜DSML｜invoke>}"},
    {"dsml", "think", "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\">1</｜DSML｜parameter></｜DSML｜invoke>",
     "!a parameter of a call has no end!{<｜DSML｜invoke name=\"f\"><｜DSML｜parameter "
     "name=\"a\">1</｜DSML｜parameter></｜DSML｜invoke>}"},
    {"dsml", "think", "a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter",
     "{a}!the reply ends inside a call!{<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter}"},
    {"glm", "think",
     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bergen</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>4</arg_value>\n</tool_call>",
     "<weather {\"city\": \"Bergen\", \"days\": 4}>"},
    {"glm", "think", "<tool_call>now</tool_call>", "<now {}>"},
    {"glm", "think", "<tool_call>f<arg_key>k</arg_key>v</tool_call>",
     "!an argument of a call is not between its marks!{<tool_call>f<arg_key>k</arg_key>v</tool_call>}"},
    {"gemma4", "channel",
     "<|channel>thought\nHm.\n<channel|><|tool_call>call:weather{city:<|\"|>Oslo, {N}<|\"|>,days:3,l:[1,-2.5e1,"
     "true],o:{a:null,<|\"|>b c<|\"|>:<|\"|><|\"|>}}<tool_call|>",
     "(Hm.\n)<weather {\"city\": \"Oslo, {N}\", \"days\": 3, \"l\": [1, -2.5e1, true], \"o\": {\"a\": null, \"b c\": "
     "\"\"}}>"},
    {"gemma4", "channel", "<|tool_call>call:now{}<tool_call|>", "<now {}>"},
    {"gemma4", "channel", "<|channel>thorn<channel|>x", "(thorn){x}"},
    {"gemma4", "channel", "<|tool_call>call:f{a:b}<tool_call|>",
     "!a value in a call is neither a text between marks nor a number!{<|tool_call>call:f{a:b}<tool_call|>}"},
    {"gemma4", "channel", "<|tool_call>call:f{a:1 b:2}<tool_call|>",
     "!a value in a call is neither a text between marks nor a number!{<|tool_call>call:f{a:1 b:2}<tool_call|>}"},
    /* JSON that ends by itself */
    {"mistral", "bracket",
     "[THINK]Which?[/THINK][TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"]\"}, \"id\": "
     "\"abcDEF123\"}, "
     "{\"name\": \"note\", \"arguments\": {}}]",
     "(Which?)<weather {\"city\": \"]\"}><note {}>"},
    {"mistral", "bracket", "[TOOL_CALLS]weather[CALL_ID]zzz000111[ARGS]{\"city\": \"Rom\"}",
     "<weather {\"city\": \"Rom\"}>"},
    {"mistral", "bracket", "[TOOL_CALLS]a[ARGS]{\"b\": {}}[TOOL_CALLS]c[ARGS]{}", "<a {\"b\": {}}><c {}>"},
    {"mistral", "bracket", "[TOOL_CALLS]a{\"b\": 1} then", "<a {\"b\": 1}>{ then}"},
    {"mistral", "bracket", "[TOOL_CALLS]a b[ARGS]{}",
     "!the name of a call has a sign at byte 1 that none has!{[TOOL_CALLS]a b[ARGS]{}}"},
    {"mistral", "bracket", "[TOOL_CALLS][]", "!a call is no JSON object!{[TOOL_CALLS][]}"},
    {"llama3", "off", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}",
     "<weather {\"city\": \"Oslo\"}>"},
    {"llama3", "off", "<|python_tag|>{\"type\": \"function\", \"name\": \"other\", \"parameters\": {}}", "<other {}>"},
    {"llama3", "off", "{\"name\": \"Ada\", \"parameters\": {}}", "{{\"name\": \"Ada\", \"parameters\": {}}}"},
    {"llama3", "off", "{\"answer\": 3} and", "{{\"answer\": 3} and}"},
    {"llama3", "off", "Use {\"name\": \"weather\", \"parameters\": {}}",
     "{Use {\"name\": \"weather\", \"parameters\": {}}}"},
    {"deepseek", "think",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": "
     "\"Oslo\"}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>note<｜tool▁sep｜>{\"text\": \"x\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "<weather {\"city\": \"Oslo\"}><note {\"text\": \"x\"}>"},
    /* Python */
    {"pythonic", "off", "[weather(city='Oslo', days=2), note(text=\"it's \\\"so\\\"\")]",
     "<weather {\"city\": \"Oslo\", \"days\": 2}><note {\"text\": \"it's \\\"so\\\"\"}>"},
    {"pythonic", "off", "[ weather ( 'Rom' , 3 , ) ] and", "<weather {\"city\": \"Rom\", \"days\": 3}>{ and}"},
    {"pythonic", "off",
     "<|python_start|>[other(a=[1, -2.5, +.5, 1_000, 2., 1e3], b=(True, None), c={'k': {\"l\": false}}, d=())]",
     "<other {\"a\": [1, -2.5, 0.5, 1000, 2.0, 1e3], \"b\": [true, null], \"c\": {\"k\": {\"l\": false}}, \"d\": []}>"},
    {"pythonic", "off", "[note(text='\\x41\\u00e9\\U0001F600\\ud83d\\ude00\\101\\0\\n\\d\\'' \"])\")]",
     "<note {\"text\": \"Aé😀😀A\\u0000\\n\\\\d'])\"}>"},
    {"pythonic", "off", "[1] The first, [2] the second", "{[1] The first, [2] the second}"},
    {"pythonic", "off", "[see(1)]", "{[see(1)]}"},
    {"pythonic", "off", "[note(text=\"a\"), see(b=1)]", "{[note(text=\"a\"), see(b=1)]}"},
    {"pythonic", "off", "[note(text=x)]", "{[note(text=x)]}"},
    {"pythonic", "off", "[note(text='a', text='b')]", "{[note(text='a', text='b')]}"},
    {"pythonic", "off", "[note('a', 'b')]", "{[note('a', 'b')]}"},
    {"pythonic", "off", "[note(text='never ends", "{[note(text='never ends}"},
    {"pythonic", "off", "[note(", "{[note(}"},
    {"pythonic", "off", "[", "{[}"},
    {"pythonic", "off", "Hm [note(text='a')]", "{Hm [note(text='a')]}"},
    {"tool_code", "off", "I look.\n```tool_code\nprint(weather(city=\"Oslo\"))\nnote('''a\n\"b\"''')\n```\nDone.",
     "{I look.\n}<weather {\"city\": \"Oslo\"}><note {\"text\": \"a\\n\\\"b\\\"\"}>{\nDone.}"},
    {"tool_code", "off", "```tool_code\nx = weather()\n```",
     "!a call is no name with arguments in brackets!{```tool_code\nx = weather()\n```}"},
    {"tool_code", "off", "```tool_code\nnote(text=1 2)\n```",
     "!the arguments of a call lack a comma!{```tool_code\nnote(text=1 2)\n```}"},
    {"tool_code", "off", "```tool_code\nnote(text={1: 2})\n```",
     "!a key in a call is no text!{```tool_code\nnote(text={1: 2})\n```}"},
    {"tool_code", "off", "```tool_code\nnote(text=0x10)\n```",
     "!a value in a call is no literal!{```tool_code\nnote(text=0x10)\n```}"},
    {"tool_code", "off", "```tool_code\nnote(text='\\ud800')\n```",
     "!a text in a call has an escape that is none!{```tool_code\nnote(text='\\ud800')\n```}"},
    {"tool_code", "off", "```tool_code\nprint(note(text=1), 2)\n```",
     "!the arguments of print are not one call!{```tool_code\nprint(note(text=1), 2)\n```}"},
    {"tool_code", "off", "```python\nnote()\n```", "{```python\nnote()\n```}"},
    {"lfm2", "off", "<|tool_call_start|>[a.b(), note(text=\"x\")]<|tool_call_end|>",
     "<a.b {}><note {\"text\": \"x\"}>"},
    {"lfm2", "off", "<|tool_call_start|>[a() b()]<|tool_call_end|>",
     "!a list of calls lacks a comma!{<|tool_call_start|>[a() b()]<|tool_call_end|>}"},
    {"lfm2", "off", "<|tool_call_start|>[]<|tool_call_end|>",
     "!a call is no name with arguments in brackets!{<|tool_call_start|>[]<|tool_call_end|>}"},
    {"lfm2", "off", "<|tool_call_start|>[<|tool_call_end|>",
     "!a list of calls has no end!{<|tool_call_start|>[<|tool_call_end|>}"},
    {"olmo3", "off", "<function_calls>\na(x=true)\nb(y=null)\n</function_calls>", "<a {\"x\": true}><b {\"y\": null}>"},
    /* what templates write of values that are no strings */
    {"xml", "off",
     "<tool_call><function=weather><parameter=city>True</parameter><parameter=days>True</parameter></function></"
     "tool_call>",
     "<weather {\"city\": \"True\", \"days\": true}>"},
    {"seed", "off",
     "<seed:tool_call>\n<function=weather>\n<parameter=days>['a', None]</parameter>\n</function>\n</seed:tool_call>",
     "<weather {\"days\": [\"a\", null]}>"},
    {"gemma4", "off", "<|tool_call>call:f{a:None,b:True}<tool_call|>", "<f {\"a\": null, \"b\": true}>"},
    /* lists of JSON */
    {"tool_calls", "off",
     "<tool_calls>\n{\"name\": \"a\", \"arguments\": {\"x\": \"</tool_calls>\"}}\n{\"name\": \"b\", \"arguments\": "
     "{}}\n"
     "</tool_calls>",
     "<a {\"x\": \"</tool_calls>\"}><b {}>"},
    {"tool_calls", "off", "<tool_calls>[{\"name\": \"a\", \"arguments\": {}}]</tool_calls>", "<a {}>"},
    {"tool_calls", "off", "<tool_calls>[{\"name\": \"a\", \"arguments\": {}} 3]</tool_calls>",
     "!a list of calls is no JSON!{<tool_calls>[{\"name\": \"a\", \"arguments\": {}} 3]</tool_calls>}"},
    {"tool_calls", "off", "<tool_calls>{\"name\": \"a\", \"arguments\": {}} 3</tool_calls>",
     "!a call is no JSON object!{<tool_calls>{\"name\": \"a\", \"arguments\": {}} 3</tool_calls>}"},
    {"toolcall", "off", "<TOOLCALL>[{\"name\": \"a\", \"arguments\": {}}]</TOOLCALL>", "<a {}>"},
    {"granite", "off", "<|tool_call|>[{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": {}}]",
     "<a {}><b {}>"},
    {"cohere", "off",
     "<|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"a\", \"parameters\": {}}\n]<|END_ACTION|>",
     "<a {}>"},
    /* a name in front of JSON */
    {"function", "off", "<function=weather>{\"city\": \"</function>\"}</function>",
     "<weather {\"city\": \"</function>\"}>"},
    {"function", "off", "<function=weather</function>", "!a call has no name!{<function=weather</function>}"},
    {"kimi", "off",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{\"x\": 1}"
     "<|tool_call_end|><|tool_call_begin|>b<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "<a {\"x\": 1}><b {}>"},
    {"kimi", "off", "<|tool_call_begin|>functions.a:0<|tool_call_end|>",
     "!a call has no arguments!{<|tool_call_begin|>functions.a:0<|tool_call_end|>}"},
    {"deepseek", "think", "Text <｜tool▁call▁begin｜>note<｜tool▁call▁end｜>",
     "{Text }!a call has no name!{<｜tool▁call▁begin｜>note<｜tool▁call▁end｜>}"},
};

#define N_EXAMPLES (sizeof examples / sizeof *examples)

static tern_reply *start(const char *calls, const char *reasoning, struct transcript *t)
{
    tern_reply *r;
    tern_error err = {0};
    const tern_reply_params p = {
        .calls = calls, .reasoning = reasoning, .tools = tools, .seed = 3, .on_event = transcript_event, .user = t};
    if (tern_reply_make(&r, NULL, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return r;
}

/* The text in pieces: the first one `first` bytes long, the others `more` (0: all the rest). */
static void read_in_pieces(const struct example *x, const char *text, size_t n, size_t first, size_t more,
                           struct transcript *t)
{
    tern_reply *r = start(x->calls, x->reasoning, t);
    for (size_t at = 0, k = first; at < n; at += k, k = more ? more : n) {
        k = k < n - at ? k : n - at;
        assert_int_equal(tern_reply_push(r, text + at, k, false, NULL), 0);
    }
    assert_int_equal(tern_reply_finish(r, NULL), 0);
    tern_reply_free(r);
    transcript_close(t);
}

static void check(const struct example *x, size_t first, size_t more)
{
    struct transcript t = {0};
    read_in_pieces(x, x->text, strlen(x->text), first, more, &t);
    if (!t.text.p || strcmp(t.text.p, x->expected) != 0)
        fail_msg("%s, pieces of %zu and %zu:\n%s\n  gave\n%s\n  instead of\n%s", x->calls, first, more, x->text,
                 t.text.p ? t.text.p : "", x->expected);
    transcript_clear(&t);
}

static void recorded_replies(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++)
        check(&examples[i], SIZE_MAX, 0);
}

static void pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        for (size_t cut = 1; cut < strlen(examples[i].text); cut++)
            check(&examples[i], cut, 0);
        for (size_t size = 1; size < 8; size++)
            check(&examples[i], size, size);
    }
}

/* The reply may end anywhere: in one piece and byte by byte it is the same, and nothing that was said is missing. */
static void every_beginning(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++)
        for (size_t n = 0; n <= strlen(examples[i].text); n++) {
            struct transcript whole = {0}, bytes = {0};
            read_in_pieces(&examples[i], examples[i].text, n, n, 0, &whole);
            read_in_pieces(&examples[i], examples[i].text, n, 1, 1, &bytes);
            assert_int_equal(whole.text.len, bytes.text.len);
            assert_memory_equal(whole.text.p ? whole.text.p : "", bytes.text.p ? bytes.text.p : "", whole.text.len);
            transcript_clear(&whole);
            transcript_clear(&bytes);
        }
}

/* Random texts made of the formats' own parts, by all formats: pieces leave no trace.  Text without a call comes out
 * as it went in. */
static void random_texts(void **state)
{
    (void)state;
    static const char *const parts[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{\"name\": \"a\", \"arguments\": {}}",
                                        "\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "f",
                                        "\n",
                                        " ",
                                        "<think>",
                                        "</think>",
                                        "<function=f>",
                                        "</function>",
                                        "<parameter=p>",
                                        "</parameter>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "<|tool_call>",
                                        "<tool_call|>",
                                        "call:f{",
                                        "<|\"|>",
                                        ":",
                                        ",",
                                        "1",
                                        "\\",
                                        "\xC3\xA9",
                                        "\xF0\x9F",
                                        "\xFF",
                                        "<|"};
    struct tern_rng rng = {.state = 11};
    int n_untouched = 0;
    size_t n_formats = 0;
    while (tern_reply_formats()[n_formats])
        n_formats++;
    for (int round = 0; round < 3000; round++) {
        struct tern_buf text = {0};
        struct example x = {.calls = tern_reply_formats()[tern_rng_u64(&rng) % n_formats], .reasoning = "think"};
        for (int k = (int)(tern_rng_u64(&rng) % 14); k >= 0; k--) {
            const char *part = parts[tern_rng_u64(&rng) % (sizeof parts / sizeof *parts)];
            assert_int_equal(tern_buf_add(&text, part, strlen(part), NULL), 0);
        }
        struct transcript a = {0}, b = {0};
        read_in_pieces(&x, text.p, text.len, text.len, 0, &a);
        read_in_pieces(&x, text.p, text.len, 1, 1 + (size_t)round % 3, &b);
        assert_int_equal(a.text.len, b.text.len);
        assert_memory_equal(a.text.p ? a.text.p : "", b.text.p ? b.text.p : "", a.text.len);
        if (a.text.len == text.len + 2 && a.text.p[0] == '{') {
            assert_memory_equal(a.text.p + 1, text.p, text.len);
            n_untouched++;
        }
        transcript_clear(&a);
        transcript_clear(&b);
        tern_buf_clear(&text);
    }
    assert_true(n_untouched > 300);
}

static void control_tokens(void **state)
{
    (void)state;
    struct transcript t = {0};
    tern_reply *r = start("mistral", "bracket", &t);
    const struct {
        const char *text;
        bool control;
    } pieces[] = {{"[THINK]", true},  {"hm", false},          {"[/THINK]", true}, {"a [TOOL", false}, {"<pad>", true},
                  {"_CALLS]", false}, {"[TOOL_CALLS]", true}, {"f", false},       {"[ARGS]", true},   {"{}", false}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        assert_int_equal(tern_reply_push(r, pieces[i].text, strlen(pieces[i].text), pieces[i].control, NULL), 0);
    assert_int_equal(tern_reply_finish(r, NULL), 0);
    transcript_close(&t);
    assert_string_equal(t.text.p, "(hm){a [TOOL_CALLS]}<f {}>");
    tern_reply_free(r);
    transcript_clear(&t);
}

/* A vocabulary may have a control token that is a part of marks. */
static void control_tokens_in_marks(void **state)
{
    (void)state;
    static const char *const pieces[] = {"a",         "\n\n",      "<",           "+｜DSML｜", "tool",
                                         "_calls>\n", "<",         "+｜DSML｜",   "invoke",    " name=\"f\">\n",
                                         "</",        "+｜DSML｜", "invoke>\n</", "+｜DSML｜", "tool_calls>",
                                         "<",         "+｜DSML｜", "x",           "+<pad>",    "y"};
    struct transcript t = {0};
    tern_reply *r = start("dsml", "think", &t);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const bool control = pieces[i][0] == '+';
        assert_int_equal(tern_reply_push(r, pieces[i] + control, strlen(pieces[i] + control), control, NULL), 0);
    }
    assert_int_equal(tern_reply_finish(r, NULL), 0);
    transcript_close(&t);
    assert_string_equal(t.text.p, "{a}<f {}>{\n<｜DSML｜xy}");
    tern_reply_free(r);
    transcript_clear(&t);
}

static void reasoning_begun_in_the_prompt(void **state)
{
    (void)state;
    static const struct {
        const char *prompt, *expected;
    } cases[] = {{"assistant\n<think>\n", "(a){b}"},
                 {"<think>", "(a){b}"},
                 {"<think>\n\n</think>\n\n", "{a</think>\n\nb}"},
                 {"", "{a</think>\n\nb}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct transcript t = {0};
        tern_reply *r = start("off", "think", &t);
        tern_reply_prompt(r, cases[i].prompt, strlen(cases[i].prompt));
        assert_int_equal(tern_reply_push(r, "a</think>\n\nb", 12, false, NULL), 0);
        assert_int_equal(tern_reply_finish(r, NULL), 0);
        transcript_close(&t);
        assert_string_equal(t.text.p, cases[i].expected);
        tern_reply_free(r);
        transcript_clear(&t);
    }
}

/* Ids: the model's own where it gives one; else nine letters and digits, other ones for every call and seed. */
static void ids(void **state)
{
    (void)state;
    static const char text[] = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>"
                               "<tool_call>{\"id\": \"mine\", \"name\": \"a\", \"arguments\": {}}</tool_call>"
                               "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
    struct transcript t = {0};
    read_in_pieces(&examples[0], text, strlen(text), 7, 7, &t);
    assert_int_equal(t.n_calls, 3);
    assert_string_equal(t.ids[1], "mine");
    assert_int_equal(strspn(t.ids[0], "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 9);
    assert_int_equal(strlen(t.ids[2]), 9);
    assert_string_not_equal(t.ids[0], t.ids[2]);
    transcript_clear(&t);
}

/* Pieces that end inside a character wait for its rest. */
static int whole_characters(void *user, const tern_reply_event *e)
{
    assert_true(((unsigned char)e->text[0] & 0xC0) != 0x80);
    *(size_t *)user += e->n;
    return 0;
}

static void characters_stay_whole(void **state)
{
    (void)state;
    static const char text[] = "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\xA6<think>\xE2\x82\xAC</think>\xC3\xA9";
    size_t n = 0;
    tern_reply *r;
    const tern_reply_params p = {.calls = "hermes", .reasoning = "think", .on_event = whole_characters, .user = &n};
    assert_int_equal(tern_reply_make(&r, NULL, &p, NULL), 0);
    for (size_t i = 0; i < strlen(text); i++)
        assert_int_equal(tern_reply_push(r, text + i, 1, false, NULL), 0);
    assert_int_equal(tern_reply_finish(r, NULL), 0);
    tern_reply_free(r);
    assert_int_equal(n, strlen(text) - strlen("<think></think>"));
}

/* A call that never ends is text again at 1 MiB, and what follows is read as ever. */
static void a_call_without_end(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 20;
    struct transcript t = {0};
    tern_reply *r = start("hermes", "think", &t);
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'x', n);
    memcpy(text, "<tool_call>", 11);
    assert_int_equal(tern_reply_push(r, text, n, false, NULL), 0);
    assert_int_equal(tern_reply_push(r, "<think>y</think>", 16, false, NULL), 0);
    assert_int_equal(tern_reply_finish(r, NULL), 0);
    transcript_close(&t);
    assert_memory_equal(t.text.p, "!a call is longer than 1 MiB!{<tool_call>xx", 43);
    assert_int_equal(t.text.len, strlen("!a call is longer than 1 MiB!{}(y)") + n);
    tern_reply_free(r);
    transcript_clear(&t);
    free(text);
}

static int only_one(void *user, const tern_reply_event *e)
{
    (void)e;
    return ++*(int *)user;
}

static void a_receiver_that_has_enough(void **state)
{
    (void)state;
    int n = 0;
    tern_reply *r;
    const tern_reply_params p = {.calls = "off", .on_event = only_one, .user = &n};
    assert_int_equal(tern_reply_make(&r, NULL, &p, NULL), 0);
    assert_int_equal(tern_reply_push(r, "a", 1, false, NULL), 1);
    assert_int_equal(tern_reply_push(r, "b", 1, false, NULL), 1);
    assert_int_equal(tern_reply_finish(r, NULL), 1);
    assert_int_equal(n, 1);
    tern_reply_free(r);
}

static void formats_of_templates(void **state)
{
    (void)state;
    static const struct {
        const char *text, *calls, *reasoning;
    } cases[] = {
        {"{{ tools }}<tool_call>\n{\"name\": <function-name>", "hermes", NULL},
        {"<tool_call>\n<function=example>{{ '</think>' }}", "xml", "think"},
        {"<tool_call>{name}<arg_key>k</arg_key>", "glm", NULL},
        {"<|tool_call>call:{{ tools }}<|channel>", "gemma4", "channel"},
        {"[TOOL_CALLS]{{ x }}[THINK]", "mistral", "bracket"},
        {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜></think>", "deepseek", "think"},
        {"{% set mark = '｜DSML｜' %}{{ '<' + mark + 'invoke' }}", "dsml", NULL},
        {"Environment: ipython", "llama3", NULL},
        {"{{ messages }}<seed:tool_call><function=f>", "seed", NULL},
        {"use <function=name>{}</function>, ipython", "function", NULL},
        {"<|tool_call_begin|>{{ x }}<|tool_call_argument_begin|>", "kimi", NULL},
        {"'<|tool_call_start|>[' + calls", "lfm2", NULL},
        {"a pythonic call in <function_calls></function_calls>", "olmo3", NULL},
        {"<|START_ACTION|>", "cohere", NULL},
        {"<tool_calls>[{'name'..}]</tool_calls>, never <tool_call>", "tool_calls", NULL},
        {"{{ '<TOOLCALL>[' }}", "toolcall", NULL},
        {"respond with <|tool_call|> and a list", "granite", NULL},
        {"Environment: ipython. Answer as [func_name1(a=b), func_name2(c)]", "pythonic", NULL},
        {"```tool_code\nf()\n```", "tool_code", NULL},
        {"{{ messages }}<some:tool_call>", NULL, NULL},
        {"", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tern_template *t;
        assert_int_equal(tern_template_parse(&t, "t", cases[i].text, strlen(cases[i].text), NULL), 0);
        assert_ptr_equal(tern_template_calls(t), cases[i].calls ? tern_calls_named(cases[i].calls) : NULL);
        assert_ptr_equal(tern_template_reasoning(t),
                         cases[i].reasoning ? tern_reasoning_named(cases[i].reasoning) : NULL);
        assert_int_equal(tern_template_says(t, "tools"), strstr(cases[i].text, "{{ tools }}") != NULL);
        tern_template_free(t);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const tern_reply_params bad[] = {
        {.calls = "telepathy"}, {.reasoning = "aloud"}, {.tools = "{}"}, {.tools = "[1"}};
    static const char *const words[] = {"\"telepathy\" is no format", "\"aloud\" is no format", "no JSON array",
                                        "no JSON array: "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_reply *r;
        tern_error err = {0};
        assert_int_equal(tern_reply_make(&r, NULL, &bad[i], &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, words[i]));
        assert_null(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_replies),
        cmocka_unit_test(pieces_of_any_size),
        cmocka_unit_test(every_beginning),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(control_tokens),
        cmocka_unit_test(control_tokens_in_marks),
        cmocka_unit_test(reasoning_begun_in_the_prompt),
        cmocka_unit_test(ids),
        cmocka_unit_test(characters_stay_whole),
        cmocka_unit_test(a_call_without_end),
        cmocka_unit_test(a_receiver_that_has_enough),
        cmocka_unit_test(formats_of_templates),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
