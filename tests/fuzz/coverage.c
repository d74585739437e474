/* Between code that gcc instruments and libFuzzer, whose own counters only clang fills.

   gcc calls __sanitizer_cov_trace_pc in each basic block: here that raises a counter of the pair of
   the block and the one before it, in a table that libFuzzer is told of. Comparisons are handed to
   libFuzzer as they are. So are the counters that Atheris keeps for Python's code. Preloaded before
   the sanitizers, which have functions of these names that do nothing. Nothing is counted before
   coverage_begin. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stddef.h>

enum { COUNTERS = 1 << 16 };

struct pc_entry { uintptr_t pc, flags; };

static uint8_t counters[COUNTERS];
static struct pc_entry pcs[COUNTERS];
static __thread uintptr_t block_before;
static int begun;

typedef void (*compare8)(uint64_t, uint64_t);
typedef void (*compare4)(uint32_t, uint32_t);
typedef void (*compare2)(uint16_t, uint16_t);
typedef void (*compare1)(uint8_t, uint8_t);
typedef void (*switched)(uint64_t, uint64_t *);

typedef void (*init_counters)(uint8_t *, uint8_t *);
typedef void (*init_pcs)(const uintptr_t *, const uintptr_t *);

static init_counters counters_init;
static init_pcs pcs_init;
static compare8 cmp8, const_cmp8;
static compare4 cmp4, const_cmp4;
static compare2 cmp2, const_cmp2;
static compare1 cmp1, const_cmp1;
static switched of_switch;

/* The path of the module that libFuzzer is in. 0: done; -1: it has no such functions. */
int coverage_begin(const char *fuzzer)
{
    void *library = dlopen(fuzzer, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return -1;
    counters_init = (init_counters)dlsym(library, "__sanitizer_cov_8bit_counters_init");
    pcs_init = (init_pcs)dlsym(library, "__sanitizer_cov_pcs_init");
    cmp8 = (compare8)dlsym(library, "__sanitizer_cov_trace_cmp8");
    cmp4 = (compare4)dlsym(library, "__sanitizer_cov_trace_cmp4");
    cmp2 = (compare2)dlsym(library, "__sanitizer_cov_trace_cmp2");
    cmp1 = (compare1)dlsym(library, "__sanitizer_cov_trace_cmp1");
    const_cmp8 = (compare8)dlsym(library, "__sanitizer_cov_trace_const_cmp8");
    const_cmp4 = (compare4)dlsym(library, "__sanitizer_cov_trace_const_cmp4");
    const_cmp2 = (compare2)dlsym(library, "__sanitizer_cov_trace_const_cmp2");
    const_cmp1 = (compare1)dlsym(library, "__sanitizer_cov_trace_const_cmp1");
    of_switch = (switched)dlsym(library, "__sanitizer_cov_trace_switch");
    if (!counters_init || !pcs_init || !cmp8 || !cmp4 || !cmp2 || !cmp1 || !const_cmp8
        || !const_cmp4 || !const_cmp2 || !const_cmp1 || !of_switch)
        return -1;
    for (size_t index = 0; index < COUNTERS; index++)
        pcs[index] = (struct pc_entry){(uintptr_t)&counters[index], 0};
    counters_init(counters, counters + COUNTERS);
    pcs_init((const uintptr_t *)pcs, (const uintptr_t *)(pcs + COUNTERS));
    begun = 1;
    return 0;
}

void __sanitizer_cov_8bit_counters_init(uint8_t *first, uint8_t *end)
{
    if (begun)
        counters_init(first, end);
}

void __sanitizer_cov_pcs_init(const uintptr_t *first, const uintptr_t *end)
{
    if (begun)
        pcs_init(first, end);
}

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t block = (uintptr_t)__builtin_return_address(0);
    uintptr_t mixed;
    if (!begun)
        return;
    mixed = (block ^ (block_before << 1)) * 0x9E3779B97F4A7C15u;
    counters[mixed >> 48]++;
    block_before = block;
}

/* libFuzzer takes the caller's address for the comparison's name: these are to be jumps. */
#define HANDED_ON(name, type, to) \
    void name(type left, type right) { if (begun) to(left, right); }
HANDED_ON(__sanitizer_cov_trace_cmp8, uint64_t, cmp8)
HANDED_ON(__sanitizer_cov_trace_cmp4, uint32_t, cmp4)
HANDED_ON(__sanitizer_cov_trace_cmp2, uint16_t, cmp2)
HANDED_ON(__sanitizer_cov_trace_cmp1, uint8_t, cmp1)
HANDED_ON(__sanitizer_cov_trace_const_cmp8, uint64_t, const_cmp8)
HANDED_ON(__sanitizer_cov_trace_const_cmp4, uint32_t, const_cmp4)
HANDED_ON(__sanitizer_cov_trace_const_cmp2, uint16_t, const_cmp2)
HANDED_ON(__sanitizer_cov_trace_const_cmp1, uint8_t, const_cmp1)
void __sanitizer_cov_trace_cmpf(float left, float right) { (void)left; (void)right; }
void __sanitizer_cov_trace_cmpd(double left, double right) { (void)left; (void)right; }
void __sanitizer_cov_trace_switch(uint64_t value, void *cases)
{
    if (begun)
        of_switch(value, (uint64_t *)cases);
}
