/* A workspace as a run of pieces, in whole cache lines. */
#ifndef OCTAVO_ARENA_H
#define OCTAVO_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

/* Cuts pieces off the workspace, or only adds up their sizes if there is none yet. */
typedef struct {
    uint8_t *base;
    size_t used;
} arena;

ALWAYS_INLINE void *arena_take(arena *from, size_t bytes)
{
    void *piece = from->base ? from->base + from->used : NULL;
    from->used += (bytes + 63) / 64 * 64;
    return piece;
}

#endif
