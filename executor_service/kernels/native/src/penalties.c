#include "penalties.h"

#include <math.h>

int adjusts(const oct_draw *draw)
{
    return draw->num_biases || draw->num_banned || draw->repetition != 1.0f ||
           draw->presence != 0.0f || draw->frequency != 0.0f;
}

static void penalize(float *logits, const oct_draw *draw, int32_t *counts)
{
    const int32_t *history = draw->history, length = draw->history_length;
    if (draw->repetition != 1.0f) {
        for (int32_t i = 0; i < length; i++) {
            float *logit = logits + history[i];
            if (counts[history[i]]++ == 0)
                *logit = *logit > 0 ? *logit / draw->repetition : *logit * draw->repetition;
        }
        for (int32_t i = 0; i < length; i++)
            counts[history[i]] = 0;
    }
    if (draw->presence != 0.0f || draw->frequency != 0.0f) {
        for (int32_t i = draw->num_prompt; i < length; i++)
            counts[history[i]]++;
        for (int32_t i = draw->num_prompt; i < length; i++) {
            int32_t *count = counts + history[i];
            if (!*count)
                continue;
            logits[history[i]] -= draw->presence;
            logits[history[i]] -= draw->frequency * (float)*count;
            *count = 0;
        }
    }
}

void adjust(float *logits, const oct_draw *draw, int32_t *counts)
{
    for (int32_t i = 0; i < draw->num_biases; i++)
        logits[draw->bias_tokens[i]] += draw->bias_values[i];
    penalize(logits, draw, counts);
    for (int32_t i = 0; i < draw->num_banned; i++)
        logits[draw->banned[i]] = -INFINITY;
}
