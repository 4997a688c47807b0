/* A trained filter of bieqno, used from C. Arrays are as in C: member by member, variables side by side. */
#ifndef BIEQNO_ANALYSIS_H
#define BIEQNO_ANALYSIS_H
#include <stdint.h>

typedef struct bieqno_filter bieqno_filter;

/* Read a file that `bieqno export --format onnx` wrote; NULL, and a message on stderr, if that fails. */
bieqno_filter *bieqno_open(const char *path);

/* Analyse an ensemble of N members of n variables, in place. `observed` has m values, NaN where one is missing; `noise` has
   N x n standard normal numbers, all that the analysis has of chance. Returns 0, or 1 with a message on stderr. */
int bieqno_analyse(bieqno_filter *filter, int64_t N, int64_t n, int64_t m, float *ensemble, const float *observed,
                   const float *noise);

void bieqno_close(bieqno_filter *filter);
#endif
