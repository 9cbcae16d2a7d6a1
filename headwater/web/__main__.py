"""The process of the server: `headwater up` starts it."""

from headwater.web.beside import main

main()
