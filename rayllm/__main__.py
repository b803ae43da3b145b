"""python -m rayllm"""

from rayllm.cli.main import main

main()
