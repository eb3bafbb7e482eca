"""Prints resources of a Terraform provider as JSON: their attributes, the kind of each value, and whether it is required.

usage: terraform_schema.py DIRECTORY RESOURCE...

DIRECTORY has the classes that were generated from the provider's schema. They are parsed, not run. The provider itself is the
resource `provider`.
"""

import ast
import json
import re
import sys
from pathlib import Path

# Arguments of every resource, which belong to Terraform itself.
OF_TERRAFORM = {"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"}
KINDS = [("Mapping", "map"), ("Sequence", "list"), ("builtins.bool", "bool"), ("jsii.Number", "number"), ("builtins.str", "string")]


def kind(annotation: str) -> str:
    return next((kind for part, kind in KINDS if part in annotation), "other")


def attributes(source: Path) -> dict[str, dict[str, object]]:
    classes = [node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)]
    (config,) = [node for node in classes if node.name.endswith("Config")]
    (create,) = [node for node in config.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    arguments = zip(create.args.kwonlyargs, create.args.kw_defaults)
    return {
        argument.arg: {"kind": kind(ast.unparse(argument.annotation)), "required": default is None}
        for argument, default in arguments
        if argument.arg not in OF_TERRAFORM
    }


def main() -> None:
    directory, *resources = sys.argv[1:]
    schema = {}
    for resource in resources:
        source = Path(directory, resource.removeprefix("vault_"), "__init__.py")
        # Each class says which resource of which version it stands for.
        if resource != "provider" and not re.search(rf"hashicorp/vault/5\.6\.0/docs/resources/\w+ {resource}\}}", source.read_text()):
            sys.exit(f"{source} does not stand for {resource} of hashicorp/vault 5.6.0")
        schema[resource] = attributes(source)
    print(json.dumps(schema))


main()
