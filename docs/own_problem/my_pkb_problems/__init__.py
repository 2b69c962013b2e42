"""Problems for pkb-gym: one folder each."""
