/* Lorenz-96 with a little noise, as a program that bieqno runs once per member and window:

       lorenz96 STATE_IN STATE_OUT INPUTS SEED

   A state is a file of 64-bit numbers without a header. The same source is a library for lorenz96_bmi.py. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void tendency(const double *z, double *dz, long n, double forcing)
{
    for (long i = 0; i < n; i++)
        dz[i] = (z[(i + 1) % n] - z[(i + n - 2) % n]) * z[(i + n - 1) % n] - z[i] + forcing;
}

static double uniform(uint64_t *state) /* splitmix64, in (0, 1) */
{
    uint64_t x = (*state += 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) / 9007199254740992.0;
}

/* Carry z over `steps` steps of the fourth-order Runge-Kutta method, then add noise; 0 if memory is short. */
int lorenz96_run(double *z, long n, double forcing, double step, long steps, double noise, uint64_t seed)
{
    double *k = malloc(sizeof(double) * 5 * n), *y = k + 4 * n;
    if (!k)
        return 0;
    for (long s = 0; s < steps; s++) {
        const double reach[4] = {0.0, 0.5, 0.5, 1.0};
        for (int stage = 0; stage < 4; stage++) {
            for (long i = 0; i < n; i++)
                y[i] = z[i] + (stage ? reach[stage] * step * k[(stage - 1) * n + i] : 0.0);
            tendency(y, k + stage * n, n, forcing);
        }
        for (long i = 0; i < n; i++)
            z[i] += step / 6 * (k[i] + 2 * k[n + i] + 2 * k[2 * n + i] + k[3 * n + i]);
    }
    for (long i = 0; i < n; i++)
        z[i] += noise * sqrt(-2 * log(uniform(&seed))) * cos(6.283185307179586 * uniform(&seed));
    free(k);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "expected STATE_IN STATE_OUT INPUTS SEED\n");
        return 2;
    }
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (!in || !out) {
        fprintf(stderr, "cannot open %s or %s\n", argv[1], argv[2]);
        return 1;
    }
    fseek(in, 0, SEEK_END);
    long n = ftell(in) / sizeof(double);
    rewind(in);
    double *z = malloc(sizeof(double) * n);
    if (!z || n < 4 || fread(z, sizeof(double), n, in) != (size_t)n) {
        fprintf(stderr, "cannot read a state from %s\n", argv[1]);
        return 1;
    }
    if (!lorenz96_run(z, n, 8.0, 0.05, 3, 0.01, strtoull(argv[4], NULL, 10)) ||
        fwrite(z, sizeof(double), n, out) != (size_t)n || fclose(out)) {
        fprintf(stderr, "cannot write %s\n", argv[2]);
        return 1;
    }
    fclose(in);
    free(z);
    return 0;
}
