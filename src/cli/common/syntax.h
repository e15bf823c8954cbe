// A command's syntax as data, read from the parser of its command line. Completion and the manual page are made from it, so
// they cannot differ from the parser.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

namespace unisono::cli {

struct OptionSyntax {
  std::vector<std::string> names;    // "-n", "--ranks"; a positional has one name without a dash
  std::string value;                 // "COUNT"; empty: takes none
  std::string meaning;               // one line
  std::vector<std::string> choices;  // all values it can have; empty: any
  bool positional() const { return !names.front().starts_with('-'); }
  bool takes_value() const { return !value.empty() || positional(); }
  bool takes_file() const { return value == "FILE"; }
  friend bool operator==(const OptionSyntax&, const OptionSyntax&) = default;
};

struct CommandSyntax {
  std::string name;     // "launch"; of two words if the first is a command, too: "bench compress"
  std::string summary;  // one line
  std::string usage;
  std::string description;  // paragraphs
  std::string footer;       // likewise; lines that begin with two spaces are examples or tables and stay lines
  std::vector<OptionSyntax> options;
  bool runs_program = false;  // the words behind its options are a command of their own
  bool is_subcommand() const { return name.find(' ') != std::string::npos; }
};

// Notes that the option has these values only: its help ends with them.
void set_choices(CLI::Option& option, const std::vector<std::string>& choices);

// In the order in which they were added; --help is last.
std::vector<OptionSyntax> options_of(CLI::App& app);

}  // namespace unisono::cli
