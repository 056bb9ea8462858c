#include <signal.h>
#include <stdlib.h>

#include "cli/cli.h"

/* Written before the handler is installed, read inside it. */
static tern_engine *volatile watched;
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
    tern_engine *e = watched;
    if (e)
        tern_engine_cancel(e);
}

void tern_signals_watch(tern_engine *e)
{
    struct sigaction act = {0};
    sigemptyset(&act.sa_mask);
    interrupted = 0;
    watched = e;
    if (e) {
        act.sa_handler = on_interrupt;
        /* One shot: the second Ctrl-C meets the default action, however stuck the engine may be. */
        act.sa_flags = (int)SA_RESETHAND | SA_RESTART;
    } else {
        act.sa_handler = SIG_DFL;
    }
    (void)sigaction(SIGINT, &act, NULL);
}

void tern_signals_hold(void)
{
    struct sigaction act = {.sa_handler = on_interrupt};
    sigemptyset(&act.sa_mask);
    interrupted = 0;
    watched = NULL;
    (void)sigaction(SIGINT, &act, NULL);
}

bool tern_signals_interrupted(void)
{
    return interrupted != 0;
}
