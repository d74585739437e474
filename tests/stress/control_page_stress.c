/* The protocol of the control page and of the shared page, driven hard: by threads, into which a thread sanitizer can look; by
   threads that end at random while they hold locks (of that a sanitizer knows nothing: what the kernel hands on it takes for a
   race); by processes that are killed at random.

       control_page_stress threads|dying-threads|processes SECONDS SEED

   The log is an array of numbers that are stored and read plainly: what makes that safe is the protocol alone. Each writer numbers
   its records and counts what was acknowledged. What is checked: no reader ever sees a record that is not whole; the fields of a
   view belong together; at the end every acknowledged record is there, once, and each writer's records are in order; the point up
   to which all is synced never goes back nor beyond the end; a sleeper is woken, unless the one who would wake it died; what a lock
   guards is changed by one at a time, and whoever takes it after a death is told. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#ifdef __SANITIZE_THREAD__
/* The sanitizers of some compilers do not know pthread_mutex_clocklock, and would not see who has the lock. */
static int known_clocklock(pthread_mutex_t *mutex, const struct timespec *until) {
    struct timespec now, moment;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_REALTIME, &moment);
    moment.tv_sec += until->tv_sec - now.tv_sec + 1;
    return pthread_mutex_timedlock(mutex, &moment);
}
#define pthread_mutex_clocklock(mutex, clock, until) known_clocklock(mutex, until)
#endif

#include "control_page.h"

#define WRITERS 4
#define READERS 2
#define SLEEPERS 2
#define LOCKERS 3
#define BATCH_MAX 10
#define RECORDS_MAX (1 << 22)
#define GUARDED 8
#define READERS_BIT (1u << 7)
#define SECOND_NS INT64_C(1000000000)
#define LOCK_TIMEOUT_NS (20 * SECOND_NS)
#define DEATH_IN 400 /* One append in so many is the writer's last. */

typedef struct Guarded {
    int64_t first, second; /* Equal whenever the lock is free and nobody died in between. */
    int64_t rounds;        /* Atomic: how often both were changed. */
} Guarded;

typedef struct World {
    ControlPage page;
    SharedPageHead shared;
    int32_t stop;              /* Atomic, as all below that several change. */
    int64_t sequences[WRITERS]; /* The next number of each writer: changed under the page's lock. */
    int64_t acknowledged[WRITERS];
    int64_t deaths, repairs, wakes, late_wakes, views, torn_views, syncs, takeovers, followed;
    Guarded guarded[GUARDED];
    uint64_t records[RECORDS_MAX];
} World;

static World *world;
static int by_processes, may_end;
static __thread uint64_t random_state;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "control_page_stress: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

static uint32_t random_below(uint32_t bound) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % bound;
}

static int64_t now_ns(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return moment.tv_sec * SECOND_NS + moment.tv_nsec;
}

static int stopping(void) { return __atomic_load_n(&world->stop, __ATOMIC_ACQUIRE); }

static void count(int64_t *counter) { __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED); }

/* Sometimes the end of a worker, with all the locks it holds. Processes are killed from outside as well. */
static void may_die(void) {
    if (!may_end || random_below(DEATH_IN) != 0 || stopping())
        return;
    count(&world->deaths);
    if (by_processes)
        raise(SIGKILL);
    pthread_exit(NULL);
}

/* A record: writer, number, and a check of both and the offset. */
static uint64_t record_of(int64_t writer, int64_t sequence, int64_t offset) {
    uint64_t body = ((uint64_t)(writer + 1) << 32) | (uint64_t)sequence;
    uint64_t check = (body * UINT64_C(0x9e3779b97f4a7c15)) ^ ((uint64_t)offset * UINT64_C(0xc2b2ae3d27d4eb4f));
    return body ^ (check & UINT64_C(0xffffff0000000000));
}

static int64_t writer_of(uint64_t record, int64_t offset, int64_t *sequence) {
    int64_t writer;
    *sequence = (int64_t)(record & UINT64_C(0xffffffff));
    for (writer = 0; writer < WRITERS; writer++)
        if (record_of(writer, *sequence, offset) == record)
            return writer;
    fail("offset %lld holds no whole record: %llx", (long long)offset, (unsigned long long)record);
    return -1;
}

/* Writers. */

static void publish(int64_t end) {
    ControlPage *page = &world->page;
    control_write_begin(page);
    control_store(&page->active_base_offset, end / 1000 * 1000);
    control_store(&page->active_valid_bytes, 8 * end);
    control_store(&page->active_reserved_bytes, 8 * end + 64);
    may_die();
    control_store(&page->first_base_offset, end / 2000 * 1000);
    control_store(&page->log_end_offset, end);
    may_die();
    control_write_end(page);
}

/* A writer died: what it published is the truth, what it stored beyond is not. The numbers follow from the log, as the producer
   table does. */
static void repair(void) {
    ControlPage *page = &world->page;
    int64_t end = control_load(&page->log_end_offset);
    int64_t offset, sequence, writer;
    count(&world->repairs);
    for (offset = end; offset < end + BATCH_MAX && offset < RECORDS_MAX; offset++)
        world->records[offset] = 0;
    for (offset = end - 1; offset >= 0 && offset >= end - BATCH_MAX; offset--) {
        writer = writer_of(world->records[offset], offset, &sequence);
        if (world->sequences[writer] <= sequence)
            world->sequences[writer] = sequence + 1;
    }
    publish(end);
}

static void append_lock(void) {
    int taken = control_lock(&world->page, LOCK_TIMEOUT_NS, 1);
    if (taken != 0 && taken != EOWNERDEAD)
        fail("the writer's lock: %s", strerror(taken));
    if (taken == EOWNERDEAD || control_flag(&world->page.sequence) & 1)
        repair();
}

static void append_unlock(void) {
    uint32_t wanted;
    control_unlock(&world->page);
    wanted = control_take_wanted(&world->page);
    if (wanted != 0)
        count(&world->wakes);
    if (wanted & CONTROL_WANT_OWN)
        control_wake(&world->page);
    if (wanted & CONTROL_WANT_SHARED)
        shared_word_wake(&world->shared.wakeup, SHARED_APPEND, READERS_BIT);
}

/* One append; the first number of its records, or -1 where the log is full. */
static int64_t append(int64_t writer, int64_t record_count, int64_t *end) {
    ControlPage *page = &world->page;
    int64_t base, sequence, index;
    append_lock();
    base = control_load(&page->log_end_offset);
    sequence = world->sequences[writer];
    if (base + record_count > RECORDS_MAX) {
        append_unlock();
        return -1;
    }
    for (index = 0; index < record_count; index++) {
        if (world->records[base + index] != 0)
            fail("offset %lld is not empty", (long long)(base + index));
        world->records[base + index] = record_of(writer, sequence + index, base + index);
        if (index == record_count / 2)
            may_die();
    }
    publish(base + record_count);
    world->sequences[writer] = sequence + record_count;
    may_die();
    append_unlock();
    *end = base + record_count;
    return sequence;
}

/* As the engine's sync_up_to: one syncs, the others wait for his turn to end. */
static void sync_up_to(int64_t offset) {
    ControlPage *page = &world->page;
    int64_t began_ns = now_ns();
    while (control_load(&page->recovery_point) < offset) {
        uint32_t round = control_sync_round(page);
        if (control_sync_take(page, 0, (int32_t)getpid()) != 0) {
            control_sync_wait(page, round);
            if (now_ns() - began_ns > LOCK_TIMEOUT_NS)
                fail("nobody ends the turn to sync");
            continue;
        }
        if (control_load(&page->recovery_point) < offset) {
            int64_t end = control_load(&page->log_end_offset);
            may_die();
            count(&world->syncs);
            control_raise(&page->recovery_point, end);
        }
        may_die();
        control_sync_end(page);
    }
    if (control_load(&page->recovery_point) > control_load(&page->log_end_offset))
        fail("synced beyond the end");
}

static void write_on(int64_t writer) {
    while (!stopping()) {
        int64_t record_count = 1 + random_below(BATCH_MAX), end = 0;
        int64_t first = append(writer, record_count, &end);
        if (first < 0)
            return;
        if (random_below(4) == 0)
            sync_up_to(end);
        control_raise(&world->acknowledged[writer], first + record_count);
        if (random_below(16) == 0)
            usleep(random_below(1000)); /* Let readers sleep. */
    }
}

/* Readers. */

static void check_records(int64_t *seen, int64_t end, int64_t *expected) {
    for (; *seen < end; ++*seen) {
        int64_t sequence;
        int64_t writer = writer_of(world->records[*seen], *seen, &sequence);
        if (sequence != expected[writer])
            fail("offset %lld: writer %lld's record %lld, expected %lld", (long long)*seen, (long long)writer, (long long)sequence,
                 (long long)expected[writer]);
        expected[writer] = sequence + 1;
    }
}

static void check_view(void) {
    ControlView view;
    if (!control_view(&world->page, &view)) {
        count(&world->torn_views);
        return;
    }
    count(&world->views);
    if (view.active_valid_bytes != 8 * view.log_end_offset || view.active_base_offset != view.log_end_offset / 1000 * 1000 ||
        view.first_base_offset != view.log_end_offset / 2000 * 1000)
        fail("a view whose fields do not belong together, end %lld", (long long)view.log_end_offset);
    if (view.log_end_offset != 0 && view.active_reserved_bytes != 8 * view.log_end_offset + 64)
        fail("a view with another reservation");
}

static void read_on(void) {
    int64_t expected[WRITERS] = {0};
    int64_t seen = 0, synced = 0;
    while (!stopping()) {
        int64_t point;
        check_records(&seen, control_load(&world->page.log_end_offset), expected);
        check_view();
        point = control_load(&world->page.recovery_point);
        if (point < synced)
            fail("the recovery point went back");
        synced = point;
    }
}

/* There are records, and nobody woke the sleeper: whether that stays so. He who published may be about to, however long he stands
   still: until each writer has acknowledged something more, which he does after the wake. */
static int is_late(const uint32_t *word, uint32_t seen) {
    int64_t before[WRITERS];
    int writer;
    for (writer = 0; writer < WRITERS; writer++)
        before[writer] = control_load(&world->acknowledged[writer]);
    for (writer = 0; writer < WRITERS; writer++)
        while (control_load(&world->acknowledged[writer]) == before[writer]) {
            if (shared_word_load(word) != seen || stopping())
                return 0;
            usleep(1000);
        }
    return shared_word_load(word) == seen && !stopping();
}

/* Sleeps for records as wait_for_more does: the word, the wish, the look, the sleep. On the page's own word and that of the calls, or
   on the word of all logs. */
static void sleep_on(int on_own) {
    const uint32_t *word = on_own ? &world->page.wakeup : &world->shared.wakeup;
    SharedSleep sleeps[2];
    int64_t expected[WRITERS] = {0};
    int64_t seen = 0;
    while (!stopping()) {
        uint32_t before = shared_word_load(word);
        int64_t end;
        shared_sleep_on(&sleeps[0], word, before);
        shared_sleep_on(&sleeps[1], &world->shared.called, shared_word_load(&world->shared.called));
        control_want(&world->page, on_own ? CONTROL_WANT_OWN : CONTROL_WANT_SHARED);
        end = control_load(&world->page.log_end_offset);
        if (end == seen) {
            if (!on_own || !shared_words_wait(sleeps, 2, SECOND_NS / 4))
                shared_word_wait(word, before, on_own ? SHARED_ALL_BITS : READERS_BIT, SECOND_NS / 4);
            end = control_load(&world->page.log_end_offset);
            if (end > seen)
                count(is_late(word, before) ? &world->late_wakes : &world->followed);
        }
        check_records(&seen, end, expected);
    }
}

/* Locks of keys. */

static void change_guarded(int index) {
    Guarded *guarded = &world->guarded[index];
    int taken = shared_lock_take(&world->shared, index, LOCK_TIMEOUT_NS, 1);
    if (taken != 0 && taken != EOWNERDEAD)
        fail("lock %d: %s", index, strerror(taken));
    if (taken == EOWNERDEAD) {
        count(&world->takeovers);
        guarded->second = guarded->first;
    }
    if (guarded->first != guarded->second)
        fail("lock %d: what it guards was left half changed, and nobody was told", index);
    guarded->first++;
    may_die();
    guarded->second++;
    if (random_below(8) == 0) {
        if (shared_lock_take(&world->shared, index, 0, 1) != 0)
            fail("lock %d is not recursive", index);
        shared_lock_give(&world->shared, index);
    }
    __atomic_add_fetch(&guarded->rounds, 1, __ATOMIC_RELAXED);
    if (shared_lock_give(&world->shared, index) != 0)
        fail("lock %d was not held", index);
    shared_counter_raise(&world->shared, index);
}

static void lock_on(void) {
    while (!stopping()) {
        int index;
        if (random_below(64) != 0) {
            change_guarded((int)random_below(GUARDED));
            continue;
        }
        /* All of them, in their order, as a consistent snapshot takes them. */
        for (index = 0; index < GUARDED; index++) {
            int taken = shared_lock_take(&world->shared, index, LOCK_TIMEOUT_NS, 1);
            if (taken != 0 && taken != EOWNERDEAD)
                fail("all locks, %d: %s", index, strerror(taken));
            if (taken == EOWNERDEAD) {
                        world->guarded[index].second = world->guarded[index].first;
            }
        }
        for (index = GUARDED; index-- > 0;)
            shared_lock_give(&world->shared, index);
    }
}

/* Who runs what. */

enum { WORKERS = WRITERS + READERS + SLEEPERS + LOCKERS };

static void work(int number, uint64_t seed) {
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)number + 1;
    random_below(2);
    if (number < WRITERS)
        write_on(number);
    else if (number < WRITERS + READERS)
        read_on();
    else if (number < WRITERS + READERS + SLEEPERS)
        sleep_on(number % 2);
    else
        lock_on();
}

typedef struct Worker {
    pthread_t thread;
    pid_t process;
    int number;
    uint64_t seed;
    int32_t over; /* Atomic. */
} Worker;

static void worker_over(void *argument) { __atomic_store_n(&((Worker *)argument)->over, 1, __ATOMIC_RELEASE); }

static void *worker_thread(void *argument) {
    Worker *worker = argument;
    pthread_cleanup_push(worker_over, worker);
    work(worker->number, worker->seed);
    pthread_cleanup_pop(1);
    return NULL;
}

static void worker_start(Worker *worker) {
    worker->seed++;
    worker->over = 0;
    if (!by_processes) {
        if (pthread_create(&worker->thread, NULL, worker_thread, worker) != 0)
            fail("no thread");
        return;
    }
    worker->process = fork();
    if (worker->process < 0)
        fail("no process");
    if (worker->process == 0) {
        work(worker->number, worker->seed);
        _exit(0);
    }
}

/* Whether the worker is there no more; one that failed ends all. */
static int worker_ended(Worker *worker, int wait) {
    int status = 0;
    if (!by_processes) {
        if (!wait && !__atomic_load_n(&worker->over, __ATOMIC_ACQUIRE))
            return 0;
        pthread_join(worker->thread, NULL);
        return 1;
    }
    if (waitpid(worker->process, &status, wait ? 0 : WNOHANG) == 0)
        return 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        fail("worker %d ended with signal %d", worker->number, WTERMSIG(status));
    return 1;
}

static void run(double seconds, uint64_t seed) {
    Worker workers[WORKERS];
    int64_t until_ns = now_ns() + (int64_t)(seconds * 1e9);
    int number;
    random_state = seed * UINT64_C(0xda942042e4dd58b5) + 1;
    for (number = 0; number < WORKERS; number++) {
        workers[number].number = number;
        workers[number].seed = seed + 1000 * (uint64_t)number;
        worker_start(&workers[number]);
    }
    while (now_ns() < until_ns && control_load(&world->page.log_end_offset) < RECORDS_MAX - BATCH_MAX * WRITERS) {
        usleep(1000);
        if (by_processes && random_below(8) == 0)
            kill(workers[random_below(WORKERS)].process, SIGKILL);
        for (number = 0; number < WORKERS; number++)
            if (worker_ended(&workers[number], 0))
                worker_start(&workers[number]);
    }
    __atomic_store_n(&world->stop, 1, __ATOMIC_RELEASE);
    shared_call(&world->shared);
    for (number = 0; number < WORKERS; number++)
        worker_ended(&workers[number], 1);
}

static void check_end(void) {
    int64_t expected[WRITERS] = {0};
    int64_t seen = 0, offset;
    int index;
    append_lock();
    check_records(&seen, control_load(&world->page.log_end_offset), expected);
    for (index = 0; index < WRITERS; index++)
        if (expected[index] < world->acknowledged[index])
            fail("writer %d: %lld records acknowledged, %lld there", index, (long long)world->acknowledged[index],
                 (long long)expected[index]);
    for (offset = seen; offset < RECORDS_MAX && offset < seen + BATCH_MAX; offset++)
        if (world->records[offset] != 0)
            fail("a record beyond the end");
    append_unlock();
    for (index = 0; index < GUARDED; index++)
        change_guarded(index);
    if (world->deaths == 0 && world->late_wakes != 0)
        fail("%lld wake-ups were lost", (long long)world->late_wakes);
    printf("records %lld deaths %lld repairs %lld views %lld torn %lld syncs %lld wakes %lld woken %lld late %lld takeovers %lld\n",
           (long long)seen, (long long)world->deaths, (long long)world->repairs, (long long)world->views, (long long)world->torn_views,
           (long long)world->syncs, (long long)world->wakes, (long long)world->followed, (long long)world->late_wakes,
           (long long)world->takeovers);
}

int main(int argument_count, char **arguments) {
    static const uint8_t session[16] = "a session of 16";
    const char *kind = argument_count == 4 ? arguments[1] : "";
    by_processes = strcmp(kind, "processes") == 0;
    may_end = by_processes || strcmp(kind, "dying-threads") == 0;
    if (!may_end && strcmp(kind, "threads") != 0) {
        fprintf(stderr, "control_page_stress threads|dying-threads|processes SECONDS SEED\n");
        return 2;
    }
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED)
        fail("no memory");
    if (control_init(&world->page, session) != 0 || shared_page_init(&world->shared, session) != 0)
        fail("the pages could not be made");
    control_set_flag(&world->page.ready, 1);
    if (!control_is_ready(&world->page, session) || !shared_page_is_made(&world->shared))
        fail("the pages are not of their session");
    world->stop = 1; /* Nobody dies before the start. */
    publish(0);
    world->stop = 0;
    run(atof(arguments[2]), strtoull(arguments[3], NULL, 10));
    check_end();
    return 0;
}
