/* What adjusts logits before a draw. Reference: runner/penalties.py. */
#ifndef OCTAVO_PENALTIES_H
#define OCTAVO_PENALTIES_H

#include "sample.h"

int adjusts(const oct_draw *draw);

/* In place. counts: [vocab], all 0 before and after. */
void adjust(float *logits, const oct_draw *draw, int32_t *counts);

#endif
