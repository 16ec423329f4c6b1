#include "cli/program.h"

int main(int argc, char** argv) { return weft::run_program(argc, argv); }
