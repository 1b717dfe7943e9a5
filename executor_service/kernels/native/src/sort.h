/* Sorting without memory of its own: some libraries' qsort takes it from the heap. */
#ifndef OCTAVO_SORT_H
#define OCTAVO_SORT_H

#include <stdint.h>

/* Defines `static void name(type *all, int32_t count)`, a heapsort by `before(a, b)` of two such
 * pointers. Its order is total, so that there is one result. */
#define DEFINE_SORT(name, type, before)                                                            \
    static void name##_sink(type *all, int32_t at, int32_t count)                                  \
    {                                                                                              \
        const type sunk = all[at];                                                                 \
        for (int32_t below; (below = 2 * at + 1) < count; at = below) {                            \
            below += below + 1 < count && before(all + below, all + below + 1);                    \
            if (!before(&sunk, all + below))                                                       \
                break;                                                                             \
            all[at] = all[below];                                                                  \
        }                                                                                          \
        all[at] = sunk;                                                                            \
    }                                                                                              \
                                                                                                   \
    static void name(type *all, int32_t count)                                                     \
    {                                                                                              \
        for (int32_t at = count / 2; at-- > 0;)                                                    \
            name##_sink(all, at, count);                                                           \
        for (int32_t end = count - 1; end > 0; end--) {                                            \
            const type last = all[0];                                                              \
            all[0] = all[end];                                                                     \
            all[end] = last;                                                                       \
            name##_sink(all, 0, end);                                                              \
        }                                                                                          \
    }

#endif
