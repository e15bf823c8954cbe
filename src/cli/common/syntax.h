// The syntax of a command as data. It is read from the command's CLI::App. Shell completion and the manual page are made from
// this data, so they always agree with the parser.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

namespace unisono::cli {

struct OptionSyntax {
  std::vector<std::string> names;    // "-n", "--ranks"; a positional argument has one name, which does not begin with a dash
  std::string value;                 // what the help calls the value: "COUNT"; empty: the option has no value
  std::string meaning;               // one line of help text
  std::vector<std::string> choices;  // all values that the option can have; empty: it can have any value
  bool positional() const { return !names.front().starts_with('-'); }
  bool takes_value() const { return !value.empty() || positional(); }
  bool takes_file() const { return value == "FILE"; }
  friend bool operator==(const OptionSyntax&, const OptionSyntax&) = default;
};

struct CommandSyntax {
  std::string name;     // "launch", or two words for a command in a group: "bench compress"
  std::string summary;  // one line
  std::string usage;
  std::string description;  // paragraphs
  std::string footer;       // paragraphs; lines that begin with two spaces (examples, tables) stay separate lines
  std::vector<OptionSyntax> options;
  bool runs_program = false;  // true: a program and its arguments follow the options of the command
  bool is_subcommand() const { return name.find(' ') != std::string::npos; }
};

// Stores in the option that it can have only these values. options_of() reads them from there.
void set_choices(CLI::Option& option, const std::vector<std::string>& choices);

// Returns the options in the order in which they were added, except that --help comes last.
std::vector<OptionSyntax> options_of(CLI::App& app);

}  // namespace unisono::cli
