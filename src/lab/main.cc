#include "lab/commands.h"

int main(int argc, char** argv) {
  return unisono::cli::run_tool(unisono::lab::lab_tool(), {argv + (argc > 0 ? 1 : 0), argv + argc});
}
