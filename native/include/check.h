/* EOS_CHECK: a broken invariant stops the process, in release builds too.
   A dead writer recovers; a wrong byte in the log does not. */
#ifndef EOSLOG_CHECK_H
#define EOSLOG_CHECK_H

#include <stdio.h>
#include <stdlib.h>

static inline void eos_check_failed(const char *what, const char *file, int line) {
    fprintf(stderr, "eoslog: broken invariant: %s (%s:%d)\n", what, file, line);
    abort();
}

#define EOS_CHECK_AT(condition, what, file, line) \
    (__builtin_expect(!(condition), 0) ? eos_check_failed((what), (file), (line)) : (void)0)
#define EOS_CHECK(condition, what) EOS_CHECK_AT(condition, what, __FILE__, __LINE__)

#endif
