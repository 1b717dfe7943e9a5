/* Preloaded before the C library's: counts what is asked of the heap between two marks. */
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static int is_counting;
static long num_calls;

void begin_counting(void)
{
    num_calls = 0;
    is_counting = 1;
}

long end_counting(void)
{
    is_counting = 0;
    return num_calls;
}

static void count(void)
{
    if (is_counting)
        __atomic_fetch_add(&num_calls, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size)
{
    count();
    return __libc_realloc(old, size);
}
