#include <stdio.h>

int main(int argc, char **argv) {
    /* One greeting for each name. */
    for (int i = 1; i < argc - 1; i++)
        printf("Hello, %s!\n", argv[i]);
    return 0;
}
