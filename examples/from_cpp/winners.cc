// Prints the config for a problem from a file that `ktuned export` wrote: ./winners FILE M=4096

#include <cctype>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

struct Value {
  std::string text;                                 // of a string (its escapes stay), a number, a bool or null
  std::vector<std::pair<std::string, Value>> items;  // of an object, or with empty names of an array
  const Value &get(const std::string &name) const {
    static const Value none;
    for (const auto &item : items)
      if (item.first == name) return item.second;
    return none;
  }
};

Value parse(std::istream &in) {
  Value found;
  char c = static_cast<char>((in >> std::ws).peek());
  if (c == '{' || c == '[') {
    const bool named = in.get() == '{';
    while (in >> c, c != '}' && c != ']') {
      if (c == ',') continue;
      in.putback(c);
      std::string name;
      if (named) name = parse(in).text, in >> c;  // the colon
      found.items.emplace_back(name, parse(in));
    }
  } else if (c == '"') {
    for (in.get(); in.get(c), c != '"'; found.text += c)
      if (c == '\\') found.text += c, in.get(c);
  } else {
    while (std::isalnum(static_cast<unsigned char>(c = static_cast<char>(in.peek()))) || std::strchr("+-.", c))
      found.text += static_cast<char>(in.get());
  }
  return found;
}

int main(int count, char **given) {
  std::ifstream file(given[1]);
  file.exceptions(std::ios::failbit | std::ios::eofbit);  // a file that is missing or cut ends the program here
  const Value document = parse(file);
  for (const auto &[_, winner] : document.get("winners").items) {
    bool same = true;
    for (int number = 2; number < count; number++) {
      const std::string field = given[number], name = field.substr(0, field.find('='));
      same = same && name + "=" + winner.get("problem").get(name).text == field;
    }
    if (!same) continue;
    for (const auto &[name, value] : winner.get("config").items) std::cout << name << "=" << value.text << " ";
    std::cout << "in " << winner.get("latency_us").text << " us\n";
    return 0;
  }
  return 1;
}
