/* Lines for people, and not too many of them. */
#include <stdarg.h>
#include <stdio.h>
#include "base/clock.h"
#include "tier/tier_impl.h"

#define PERIOD 600.0
#define LINES  20

void tern_say_init(struct tern_say *s, void (*say)(void *user, const char *line), void *user)
{
    *s = (struct tern_say){.say = say, .user = user};
    (void)pthread_mutex_init(&s->lock, NULL);
}

void tern_say_clear(struct tern_say *s)
{
    (void)pthread_mutex_destroy(&s->lock);
}

void tern_say(struct tern_say *s, const char *fmt, ...)
{
    char line[1200];
    va_list args;
    (void)pthread_mutex_lock(&s->lock);
    const double now = tern_now();
    if (s->n == 0 || now - s->since > PERIOD) {
        s->since = now;
        s->n = 0;
    }
    const int n = ++s->n;
    (void)pthread_mutex_unlock(&s->lock);
    if (!s->say || n > LINES + 1)
        return;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    s->say(s->user, n <= LINES ? line : "cache: more of this is not told for ten minutes; GET /v1/cache counts it");
}
