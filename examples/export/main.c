/* Analyse an ensemble from plain binary files of 32-bit floats:
       ./analyse filter.onnx N n m ensemble.bin observed.bin noise.bin posterior.bin */
#include "analysis.h"
#include <stdio.h>
#include <stdlib.h>

static float *contents(const char *path, size_t count) {
    float *values = malloc(count * sizeof *values);
    FILE *file = fopen(path, "rb");
    if (values == NULL || file == NULL || fread(values, sizeof *values, count, file) != count) {
        fprintf(stderr, "cannot read %zu numbers from %s\n", count, path);
        exit(1);
    }
    fclose(file);
    return values;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fprintf(stderr, "usage: %s filter.onnx N n m ensemble.bin observed.bin noise.bin posterior.bin\n", argv[0]);
        return 2;
    }
    int64_t N = atoll(argv[2]), n = atoll(argv[3]), m = atoll(argv[4]);
    float *ensemble = contents(argv[5], (size_t)(N * n)), *observed = contents(argv[6], (size_t)m);
    float *noise = contents(argv[7], (size_t)(N * n));
    bieqno_filter *filter = bieqno_open(argv[1]);
    if (filter == NULL || bieqno_analyse(filter, N, n, m, ensemble, observed, noise)) return 1;
    FILE *file = fopen(argv[8], "wb");
    if (file == NULL || fwrite(ensemble, sizeof(float), (size_t)(N * n), file) != (size_t)(N * n)) return 1;
    fclose(file);
    bieqno_close(filter);
    free(ensemble), free(observed), free(noise);
    return 0;
}
