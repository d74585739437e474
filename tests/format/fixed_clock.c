/* The wall clock stands still, in 2033: what a store writes then depends on its calls alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int (*real_gettime)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        now->tv_sec = 2000000000;
        now->tv_nsec = 123000000;
        return 0;
    }
    if (real_gettime == NULL)
        real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real_gettime(clock, now);
}
