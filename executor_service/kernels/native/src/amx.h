/* Matrix tiles of the processor: eight registers of 16 rows of 64 bytes.
 *
 * The compiler takes tile registers for none of its business: what a load reads must be in memory by
 * then, which `amx_now` sees to.
 */
#ifndef OCTAVO_AMX_H
#define OCTAVO_AMX_H

#include "simd.h"

#if AMX

#define AMX_ROWS 16
#define AMX_ROW_BYTES 64
#define AMX_BYTES (AMX_ROWS * AMX_ROW_BYTES)

/* The shapes of tiles, as the processor reads them. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_shapes;

/* Tiles [first, last) of this shape. */
ALWAYS_INLINE void amx_shape(amx_shapes *shapes, int first, int last, int rows, int row_bytes)
{
    shapes->palette = 1;
    for (int i = first; i < last; i++) {
        shapes->rows[i] = (uint8_t)rows;
        shapes->row_bytes[i] = (uint16_t)row_bytes;
    }
}

/* For this thread until `amx_end`. */
ALWAYS_INLINE void amx_begin(const amx_shapes *shapes)
{
    __asm__ volatile("" ::"m"(*shapes));
    _tile_loadconfig(shapes);
}

/* Without it every switch to another thread saves eight kilobytes. */
ALWAYS_INLINE void amx_end(void)
{
    _tile_release();
}

/* Puts what was written before into memory, where tiles are loaded from. */
ALWAYS_INLINE void amx_now(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
#endif
