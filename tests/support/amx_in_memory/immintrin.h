/* The instructions of matrix tiles that the kernels use, done in memory, so that machines without
 * them run the very code of that level. Found before whatever header of this name comes next. */
#ifndef AMX_IN_MEMORY_H
#define AMX_IN_MEMORY_H

#include_next <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} memory_tile_shapes;

typedef union {
    uint8_t bytes[16][64];
    int8_t signed_bytes[16][64];
    int32_t whole[16][16];
    float floats[16][16];
    uint16_t halves[16][32];
} memory_tile;

static __thread memory_tile_shapes memory_shapes;
static __thread memory_tile memory_tiles[8];

static inline void memory_tile_load(int tile, const void *from, size_t stride)
{
    memset(memory_tiles + tile, 0, sizeof *memory_tiles);
    for (int i = 0; i < memory_shapes.rows[tile]; i++)
        memcpy(memory_tiles[tile].bytes[i], (const uint8_t *)from + (size_t)i * stride,
               memory_shapes.row_bytes[tile]);
}

static inline void memory_tile_store(int tile, void *to, size_t stride)
{
    for (int i = 0; i < memory_shapes.rows[tile]; i++)
        memcpy((uint8_t *)to + (size_t)i * stride, memory_tiles[tile].bytes[i],
               memory_shapes.row_bytes[tile]);
}

static inline void memory_tile_bytes(int sums, int a, int b)
{
    for (int i = 0; i < memory_shapes.rows[a]; i++)
        for (int k = 0; k < memory_shapes.row_bytes[a]; k++)
            for (int n = 0; n < memory_shapes.row_bytes[b] / 4; n++)
                memory_tiles[sums].whole[i][n] += memory_tiles[a].signed_bytes[i][k] *
                                                  memory_tiles[b].signed_bytes[k / 4][n * 4 + k % 4];
}

/* Subnormal numbers count as zeros, as they do for the processor. */
static inline float memory_bfloat16(uint16_t bits)
{
    uint32_t whole = bits & 0x7f80 ? (uint32_t)bits << 16 : 0;
    float value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

/* Even and odd elements in a chain each, which are added at the end. */
static inline void memory_tile_bfloat16(int sums, int a, int b)
{
    for (int i = 0; i < memory_shapes.rows[a]; i++)
        for (int n = 0; n < memory_shapes.row_bytes[b] / 4; n++) {
            float chains[2] = {0, 0};
            for (int k = 0; k < memory_shapes.row_bytes[a] / 2; k++)
                chains[k % 2] = __builtin_fmaf(memory_bfloat16(memory_tiles[a].halves[i][k]),
                                               memory_bfloat16(memory_tiles[b].halves[k / 2][n * 2 + k % 2]),
                                               chains[k % 2]);
            memory_tiles[sums].floats[i][n] += chains[0] + chains[1];
        }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) memcpy(&memory_shapes, shapes, sizeof memory_shapes)
#define _tile_release() memset(&memory_shapes, 0, sizeof memory_shapes)
#define _tile_zero(tile) memset(memory_tiles + (tile), 0, sizeof *memory_tiles)
#define _tile_loadd memory_tile_load
#define _tile_stored memory_tile_store
#define _tile_dpbssd memory_tile_bytes
#define _tile_dpbf16ps memory_tile_bfloat16

#endif
