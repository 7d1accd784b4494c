"""The user's verbs: ``fencelog NOUN VERB``. Each noun is a module that loads when it is used."""
