"""Plain data as YAML text. Free of torch and pandas."""

import re
from typing import Any

import yaml

from lnexp.yamlfile import FLOAT


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line breaks are escaped: PyYAML writes a U+0085 in single quotes, and reads a space back."""
    quote = '"' if re.search("[\r\n\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quote)


_Dumper.add_representer(str, _text)
# Text such as 1e3, which is a number to us and text to YAML 1.1, is quoted for both.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))


def dump(data: Any) -> str:
    """YAML text that `parse` and every YAML 1.1 reader read back to the same values."""
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
